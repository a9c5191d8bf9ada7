# install.mk - `make install`, `make uninstall`, `make dist`; included by the Makefile.
#
#   make                                  as yourself
#   sudo make install                     to /usr/local; copies only what is built
#   make install DESTDIR=/tmp/p PREFIX=/usr libdir=/usr/lib/x86_64-linux-gnu     for a package
#
# The variables are those of the GNU coding standards (Directory Variables, DESTDIR); every one can be given on the command
# line. uninstall takes the same ones and removes exactly what install wrote, and folders of ours that are then empty.

PREFIX        ?= /usr/local
prefix        ?= $(PREFIX)
exec_prefix   ?= $(prefix)
bindir        ?= $(exec_prefix)/bin
libdir        ?= $(exec_prefix)/lib
includedir    ?= $(prefix)/include
datarootdir   ?= $(prefix)/share
mandir        ?= $(datarootdir)/man
docdir        ?= $(datarootdir)/doc/llmd
# where people look for it: below /etc, unless the whole tree is somebody's own
sysconfdir    ?= $(if $(filter /usr /usr/local,$(prefix)),/etc,$(prefix)/etc)
pkgconfigdir  ?= $(libdir)/pkgconfig
unitdir       ?= $(prefix)/lib/systemd/system
sysusersdir   ?= $(prefix)/lib/sysusers.d
completiondir ?= $(datarootdir)/bash-completion/completions
# the Python package as pip takes it: pip install PREFIX/share/llmd/python
pythondir     ?= $(datarootdir)/llmd/python

INSTALL         ?= install
INSTALL_PROGRAM ?= $(INSTALL) -m 0755
INSTALL_DATA    ?= $(INSTALL) -m 0644

# libllmclient.so.1.1: 1 is the ABI (the soname), the second 1 counts additions to it, as LLMCLIENT_1.1 does in client/llmclient.map
SO_MAJOR := 1
SO_MINOR := 1
SO_FILE  := libllmclient.so.$(SO_MAJOR).$(SO_MINOR)

API_HEADERS := client/llmclient.h shm/llm_abi.h $(wildcard client/llm_*.h)
MAN_PAGES   := $(wildcard etc/man/*.[1-8])
EXAMPLE_FILES := etc/llmd.conf $(wildcard etc/grafana/*.json etc/prometheus/*.yml etc/keda/*.yaml etc/haproxy/*.cfg etc/kubernetes/*.yaml) \
                 $(wildcard client/examples/*.c client/python/examples/*.py)
PYTHON_BUILD   := $(addprefix client/python/,pyproject.toml build_wheel.py README.md)
PYTHON_PACKAGE := $(wildcard client/python/llmclient/*.py) client/python/llmclient/py.typed

man_section = $(subst .,,$(suffix $(1)))
# alias=page for every further name in a page's NAME section: a file `alias.3` that only says `.so man3/page.3`
MAN_ALIASES = $(shell awk 'FNR == 1 {on = 0; page = FILENAME; sub(".*/", "", page)} /^\.Sh/ {on = $$2 == "NAME"} \
                on && /^\.Nm/ && $$2 != substr(page, 1, length(page) - 2) {print $$2 substr(page, length(page) - 1) "=" page}' $(MAN_PAGES))

# every file that install writes, without DESTDIR
INSTALLED = $(addprefix $(bindir)/,llmd llmctl llm-gateway) \
            $(addprefix $(libdir)/,$(SO_FILE) libllmclient.so.$(SO_MAJOR) libllmclient.so libllmclient.a) \
            $(addprefix $(includedir)/,$(notdir $(API_HEADERS))) \
            $(pkgconfigdir)/llmclient.pc \
            $(foreach page,$(notdir $(MAN_PAGES)) $(foreach a,$(MAN_ALIASES),$(firstword $(subst =, ,$(a)))),$(mandir)/man$(call man_section,$(page))/$(page)) \
            $(addprefix $(completiondir)/,llmd llmctl llm-gateway) \
            $(unitdir)/llmd@.service $(sysusersdir)/llmd.conf \
            $(addprefix $(pythondir)/,$(notdir $(PYTHON_BUILD)) $(addprefix llmclient/,$(notdir $(PYTHON_PACKAGE)))) \
            $(docdir)/README.md $(docdir)/LICENSE $(addprefix $(docdir)/examples/,$(notdir $(EXAMPLE_FILES)))
# folders that only we use, the innermost first
OWN_DIRS  = $(docdir)/examples $(docdir) $(sysconfdir)/llmd $(pythondir)/llmclient $(pythondir) $(datarootdir)/llmd

# $(call fill,from,to): copies a text with its @name@ places filled
fill = rm -f $(2) && sed -e 's|@prefix@|$(prefix)|g' -e 's|@exec_prefix@|$(exec_prefix)|g' -e 's|@bindir@|$(bindir)|g' \
    -e 's|@libdir@|$(libdir)|g' -e 's|@includedir@|$(includedir)|g' -e 's|@sysconfdir@|$(sysconfdir)|g' \
    -e 's|@docdir@|$(docdir)|g' -e 's|@VERSION@|$(VERSION)|g' $(1) >$(2) && chmod 0644 $(2)

# only where it is this machine's own library folder, and only where we may
LDCONFIG = if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" -eq 0 ]; then PATH="$$PATH:/sbin:/usr/sbin" ldconfig; fi

BUILT_FILES := $(B)/llmd $(B)/llmctl $(B)/llm-gateway $(B)/libllmclient.so $(B)/libllmclient.a

.PHONY: install uninstall dist
install: $(BUILT_FILES) ## copy what is built to PREFIX (/usr/local), below DESTDIR
	@echo '  INSTALL $(DESTDIR)$(prefix)'
	@umask 022 && mkdir -p $(addprefix $(DESTDIR),$(sort $(dir $(INSTALLED))) $(OWN_DIRS))
	@$(INSTALL_PROGRAM) $(B)/llmd $(B)/llmctl $(B)/llm-gateway $(DESTDIR)$(bindir)/
	@$(INSTALL_PROGRAM) $(B)/libllmclient.so $(DESTDIR)$(libdir)/$(SO_FILE)
	@ln -sf $(SO_FILE) $(DESTDIR)$(libdir)/libllmclient.so.$(SO_MAJOR)
	@ln -sf libllmclient.so.$(SO_MAJOR) $(DESTDIR)$(libdir)/libllmclient.so
	@$(INSTALL_DATA) $(B)/libllmclient.a $(DESTDIR)$(libdir)/
	@$(INSTALL_DATA) $(API_HEADERS) $(DESTDIR)$(includedir)/
	@$(call fill,client/llmclient.pc.in,$(DESTDIR)$(pkgconfigdir)/llmclient.pc)
	@for page in $(MAN_PAGES); do to=$(DESTDIR)$(mandir)/man$${page##*.}/$${page##*/}; \
	    $(call fill,"$$page","$$to") || exit 1; done
	@for pair in $(MAN_ALIASES); do section=man$${pair##*.} to=$(DESTDIR)$(mandir)/man$${pair##*.}/$${pair%%=*}; \
	    rm -f "$$to" && echo ".so $$section/$${pair#*=}" >"$$to" && chmod 0644 "$$to" || exit 1; done
	@$(INSTALL_DATA) etc/completion/llmd etc/completion/llmctl etc/completion/llm-gateway $(DESTDIR)$(completiondir)/
	@$(call fill,etc/systemd/llmd@.service,$(DESTDIR)$(unitdir)/llmd@.service)
	@$(INSTALL_DATA) etc/systemd/llmd.sysusers $(DESTDIR)$(sysusersdir)/llmd.conf
	@$(INSTALL_DATA) $(PYTHON_BUILD) $(DESTDIR)$(pythondir)/
	@$(INSTALL_DATA) $(PYTHON_PACKAGE) $(DESTDIR)$(pythondir)/llmclient/
	@$(INSTALL_DATA) README.md LICENSE $(DESTDIR)$(docdir)/
	@$(INSTALL_DATA) $(EXAMPLE_FILES) $(DESTDIR)$(docdir)/examples/
	@$(LDCONFIG)

uninstall: ## remove what install wrote (same PREFIX and DESTDIR)
	@echo '  REMOVE  $(DESTDIR)$(prefix)'
	@rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	@for d in $(addprefix $(DESTDIR),$(OWN_DIRS)); do [ ! -d "$$d" ] || rmdir --ignore-fail-on-non-empty "$$d"; done
	@$(LDCONFIG)

dist: ## source archive of the last commit: build/llmd-VERSION.tar.gz
	@git rev-parse -q --verify HEAD >/dev/null 2>&1 || { echo 'dist: this is no git checkout (or one of another user)' >&2; exit 1; }
	@mkdir -p $(B)
	@git archive --format=tar --prefix=llmd-$(VERSION)/ HEAD >$(B)/llmd-$(VERSION).tar
	@gzip -9nf $(B)/llmd-$(VERSION).tar
	@echo $(B)/llmd-$(VERSION).tar.gz
