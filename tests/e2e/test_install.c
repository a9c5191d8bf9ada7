/* test_install.c - what `make install` leaves is enough for a stranger: programs in C and C++ build
 * outside the tree with pkg-config and stream from an engine; `make uninstall` takes all of it
 * away.
 */
#include "../support/installed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct engine_process engine;

/* ---- the tree ---- */

static void files_and_modes(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        mode_t mode;
    } files[] = {{"usr/bin/llmd", 0755},
                 {"usr/bin/llmctl", 0755},
                 {"usr/bin/llm-gateway", 0755},
                 {"usr/share/man/man8/llm-gateway.8", 0644},
                 {"usr/share/bash-completion/completions/llm-gateway", 0644},
                 {"usr/lib/libllmclient.so.1.1", 0755},
                 {"usr/lib/libllmclient.a", 0644},
                 {"usr/lib/pkgconfig/llmclient.pc", 0644},
                 {"usr/include/llmclient.h", 0644},
                 {"usr/include/llm_abi.h", 0644},
                 {"usr/share/man/man8/llmd.8", 0644},
                 {"usr/share/man/man1/llmctl.1", 0644},
                 {"usr/share/man/man3/llmclient.3", 0644},
                 {"usr/share/man/man3/llm_close.3", 0644},
                 {"usr/share/bash-completion/completions/llmd", 0644},
                 {"usr/share/bash-completion/completions/llmctl", 0644},
                 {"usr/lib/systemd/system/llmd@.service", 0644},
                 {"usr/lib/sysusers.d/llmd.conf", 0644},
                 {"usr/share/llmd/python/pyproject.toml", 0644},
                 {"usr/share/llmd/python/llmclient/__init__.py", 0644},
                 {"usr/share/doc/llmd/examples/llmd.conf", 0644},
                 {"usr/share/doc/llmd/examples/llmd-dashboard.json", 0644},
                 {"usr/share/doc/llmd/examples/llmd-haproxy.cfg", 0644}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", installed_root(), files[i].path);
        if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size == 0)
            fail_msg("%s is not installed", files[i].path);
        if ((st.st_mode & 07777) != files[i].mode)
            fail_msg("%s has mode %o", files[i].path, st.st_mode & 07777);
    }
    /* whatever the umask: everybody reads it, nobody else writes it, no place is left unfilled */
    char *bad =
        succeeds("cd '%s' && find . ! -type l \\( ! -perm -444 -o -perm /022 \\) -print && "
                 "find . -type d ! -perm -755 -print && "
                 "{ grep -rlE '@(prefix|bindir|libdir|includedir|sysconfdir|docdir|VERSION)@' "
                 "usr/share usr/lib/systemd usr/lib/pkgconfig || true; }",
                 installed_root());
    assert_string_equal(bad, "");
    free(bad);
}

static void library_links(void **state)
{
    (void)state;
    char *out = succeeds("cd '%s/usr/lib' && readlink libllmclient.so libllmclient.so.1 && "
                         "readelf -d libllmclient.so | sed -n 's/.*SONAME.*\\[\\(.*\\)\\]/\\1/p'",
                         installed_root());
    assert_string_equal(out, "libllmclient.so.1\nlibllmclient.so.1.1\nlibllmclient.so.1\n");
    free(out);
}

/* What the installed headers declare, sorted. */
static char *declared(void)
{
    return succeeds("cat '%s'/usr/include/llm*.h | grep -v '^ *#' | tr '\\n' ' ' | "
                    "grep -oE 'LLM_API [^;(]*\\(' | sed 's/.*[ *]\\(llm_[a-z0-9_]*\\)($/\\1/' | "
                    "sort -u",
                    installed_root());
}

static void exports_what_the_headers_declare(void **state)
{
    (void)state;
    char *want = declared();
    assert_non_null(strstr(want, "llm_submit\n"));
    char *shared = succeeds("nm -D --defined-only '%s/usr/lib/libllmclient.so' | "
                            "sed -n 's/.* [TDBRVW] \\(.*\\)@@LLMCLIENT_1\\.[01]$/\\1/p' | sort",
                            installed_root());
    char *all = succeeds("nm -D --defined-only '%s/usr/lib/libllmclient.so' | "
                         "sed 's/.* //; s/@.*//' | grep -v '^LLMCLIENT_' | sort",
                         installed_root());
    char *archive = succeeds("nm -g --defined-only '%s/usr/lib/libllmclient.a' | "
                             "sed -n 's/^[0-9a-f]* . //p' | sort",
                             installed_root());
    assert_string_equal(shared, want);
    assert_string_equal(all, want);
    assert_string_equal(archive, want);
    free(want), free(shared), free(all), free(archive);
}

static void installing_builds_nothing(void **state)
{
    (void)state;
    const char *b = getenv("B") && *getenv("B") ? getenv("B") : "build";
    int status;
    free(run_command(&status,
                     "env -i PATH=\"$PATH\" make -q B='%s' '%s/llmd' '%s/llmctl' "
                     "'%s/libllmclient.so' '%s/libllmclient.a' 2>&1",
                     b, b, b, b, b));
    if (status)
        skip(); /* sources have changed since the build */
    char *out = succeeds("env -i PATH=\"$PATH\" make -n B='%s' install DESTDIR=/nowhere", b);
    assert_null(strstr(out, " -c -o "));
    assert_null(strstr(out, "-shared"));
    assert_null(strstr(out, "apt-get"));
    free(out);
}

/* ---- programs ---- */

static void headers_stand_alone(void **state)
{
    (void)state;
    free(succeeds("cd '%s/usr/include' && for h in llm*.h; do "
                  "for c in 'cc -std=c11' 'c++ -x c++ -std=c++11'; do "
                  "echo \"#include <$h>\" >'%s/alone.c' && $c -pedantic -Wall -Wextra -Werror "
                  "-Wshadow -I. -fsyntax-only '%s/alone.c' || exit 1; done; done",
                  installed_root(), scratch_dir(), scratch_dir()));
}

/* The program at the head of llmclient.h, for this test's instance. */
static const char *header_example(const char *name)
{
    char *text = succeeds("awk '/^ \\* Build:/{exit} /#include <llmclient.h>/{on = 1} on{print}' "
                          "'%s/usr/include/llmclient.h' | sed 's/^ \\*//; s/\"default\"/\"%s\"/'",
                          installed_root(), engine.instance);
    assert_non_null(strstr(text, engine.instance));
    assert_non_null(strstr(text, "int main(void)"));
    const char *path = scratch_file(name, text);
    free(text);
    return path;
}

/* What llmctl makes of the example's prompt; no newlines at its end. */
static char *expected(void)
{
    char *text = succeeds("'%s/usr/bin/llmctl' -i %s complete -n 16 'The capital of France is'",
                          installed_root(), engine.instance);
    for (size_t n = strlen(text); n && text[n - 1] == '\n';)
        text[--n] = 0;
    return text;
}

static void streams(const char *program)
{
    char *want = expected();
    assert_non_null(strstr(want, "Paris"));
    char *got = succeeds("LD_LIBRARY_PATH='%s/usr/lib' '%s'", installed_root(), program);
    for (size_t n = strlen(got); n && got[n - 1] == '\n';)
        got[--n] = 0;
    assert_string_equal(got, want);
    free(got), free(want);
}

static void c_program(void **state)
{
    (void)state;
    streams(build_program("cc -std=c11 -pedantic", header_example("example.c"), "example"));
}

static void cpp_program(void **state)
{
    (void)state;
    streams(build_program("c++ -std=c++11 -pedantic", header_example("example.cc"), "example-cc"));
}

/* The installed examples, as a user finds them. */
static void example_programs(void **state)
{
    (void)state;
    char *list = succeeds("ls '%s'/usr/share/doc/llmd/examples/*.c", installed_root()), *at = list;
    assert_non_null(strstr(list, "/epoll.c\n"));
    for (char *source; (source = next_word(&at));)
        build_program("cc -std=gnu17", source, "example-installed");
    free(list);
}

/* The archive takes no name of the program's: these are names inside the library. */
static void static_program(void **state)
{
    (void)state;
    const char *own = scratch_file("own.c", "int words_build(void);\nint ring_submit(void);\n"
                                            "int words_build(void) { return 0; }\n"
                                            "int ring_submit(void) { return 0; }\n");
    char program[512];
    const char *root = installed_root(), *source = header_example("static.c");
    snprintf(program, sizeof program, "%.400s/example-static", scratch_dir());
    char *flags = succeeds("PKG_CONFIG_SYSROOT_DIR='%s' PKG_CONFIG_PATH='%s/usr/lib/pkgconfig' "
                           "pkg-config --static --cflags --libs llmclient",
                           root, root);
    flags[strcspn(flags, "\n")] = 0;
    free(succeeds("rm -rf '%s/static' && mkdir '%s/static' && cp '%s/usr/lib/libllmclient.a' "
                  "'%s/static' && cc '%s' '%s' -o '%s' -L'%s/static' -Wl,-Bstatic -lllmclient "
                  "-Wl,-Bdynamic $(echo '%s' | sed 's/-lllmclient//')",
                  scratch_dir(), scratch_dir(), root, scratch_dir(), source, own, program,
                  scratch_dir(), flags));
    free(flags);
    char *needed = succeeds("readelf -d '%s' | grep NEEDED", program);
    assert_null(strstr(needed, "llmclient"));
    free(needed);
    streams(program);
}

/* ---- the service ---- */

static void unit_is_clean(void **state)
{
    (void)state;
    if (!have_command("systemd-analyze"))
        skip();
    const char *dir = scratch_dir();
    install_make("install PREFIX='%s/prefix' LDCONFIG=:", dir);
    char *said = succeeds("MANPATH='%s/prefix/share/man:' systemd-analyze verify "
                          "'%s/prefix/lib/systemd/system/llmd@x.service'",
                          dir, dir);
    assert_string_equal(said, "");
    free(said);
    char *score = succeeds("systemd-analyze security --offline=true --threshold=10 "
                           "'%s/prefix/lib/systemd/system/llmd@.service' | tail -1",
                           dir);
    print_message("%s", score);
    free(score);
    install_make("uninstall PREFIX='%s/prefix' LDCONFIG=:", dir);
    char *rest = succeeds("find '%s/prefix' ! -type d", dir);
    assert_string_equal(rest, "");
    free(rest);
}

/* ---- and away ---- */

static void uninstall_leaves_nothing(void **state)
{
    (void)state;
    const char *dir = scratch_dir();
    install_make("install DESTDIR='%s/away' PREFIX=/usr libdir=/usr/lib/x86_64-linux-gnu", dir);
    char *there =
        succeeds("test -f '%s/away/usr/lib/x86_64-linux-gnu/pkgconfig/llmclient.pc'", dir);
    free(there);
    /* what is not ours stays */
    free(succeeds("echo x >'%s/away/etc/llmd/default.conf' && echo x >'%s/away/usr/bin/other'", dir,
                  dir));
    install_make("uninstall DESTDIR='%s/away' PREFIX=/usr libdir=/usr/lib/x86_64-linux-gnu", dir);
    char *rest = succeeds("cd '%s/away' && find . ! -type d | sort && "
                          "find . -type d -name 'llmd*' | sort",
                          dir);
    assert_string_equal(rest, "./etc/llmd/default.conf\n./usr/bin/other\n./etc/llmd\n");
    free(rest);
}

static void archive_of_sources(void **state)
{
    (void)state;
    int status;
    free(run_command(&status, "git rev-parse --verify HEAD 2>&1"));
    if (status)
        skip(); /* these sources are such an archive themselves */
    char *names = succeeds("rm -rf '%s/dist' && env -i PATH=\"$PATH\" HOME=\"$HOME\" make -s "
                           "--no-print-directory dist B='%s/dist' >/dev/null && "
                           "tar tzf '%s'/dist/llmd-*.tar.gz",
                           scratch_dir(), scratch_dir(), scratch_dir());
    char *tracked = succeeds("git ls-tree -r --name-only HEAD | wc -l");
    char *packed = succeeds("tar tzf '%s'/dist/llmd-*.tar.gz | grep -vc '/$'", scratch_dir());
    assert_non_null(strstr(names, "/Makefile\n"));
    assert_null(strstr(names, "/build/"));
    assert_int_equal(atoi(tracked), atoi(packed));
    free(names), free(tracked), free(packed);
}

static int start(void **state)
{
    (void)state;
    engine_start(&engine, real_model_path(), "--max-model-len", "256", "--max-num-seqs", "4", NULL);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    return engine_stop(&engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_modes),
        cmocka_unit_test(library_links),
        cmocka_unit_test(exports_what_the_headers_declare),
        cmocka_unit_test(installing_builds_nothing),
        cmocka_unit_test(headers_stand_alone),
        cmocka_unit_test(c_program),
        cmocka_unit_test(cpp_program),
        cmocka_unit_test(example_programs),
        cmocka_unit_test(static_program),
        cmocka_unit_test(unit_is_clean),
        cmocka_unit_test(uninstall_leaves_nothing),
        cmocka_unit_test(archive_of_sources),
    };
    return cmocka_run_group_tests_name("install", tests, start, stop);
}
