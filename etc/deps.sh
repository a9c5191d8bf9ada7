#!/bin/sh
# Installs the packages of etc/packages.txt that are missing. Quick and silent when all are there.
set -eu
cd "$(dirname "$0")/.."
[ "${LLMD_SKIP_DEPS:-}" ] && exit 0
if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "deps: not a Debian system; please install what etc/packages.txt names" >&2
    exit 0
fi
missing=
for package in $(sed 's/#.*//' etc/packages.txt); do
    case "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)" in
    *"ok installed") ;;
    *) missing="$missing $package" ;;
    esac
done
[ -z "$missing" ] && exit 0
install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -eq 0 ]; then
    sudo=
elif command -v sudo >/dev/null 2>&1; then
    sudo=sudo
else
    echo "deps: these packages are missing:$missing" >&2
    echo "deps: as root, please run:  apt-get update && $install" >&2
    exit 1
fi
echo "deps: installing$missing${sudo:+ (through sudo)}"
export DEBIAN_FRONTEND=noninteractive
# two builds started side by side wait for each other here
$sudo apt-get -q -o DPkg::Lock::Timeout=300 update
$sudo apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing
