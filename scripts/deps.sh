#!/bin/sh
# Installs what a build needs, on Debian 12 and 13. Asks nothing, says what it installs, and does
# nothing at all when everything is there. Runs as root, or through sudo.
set -eu
packages="build-essential pkg-config libsqlite3-dev libcurl4-openssl-dev libjansson-dev
    liburing-dev libsodium-dev libuv1-dev libutf8proc-dev libzstd-dev libcmocka-dev"
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps: this is no Debian; install the equivalents of:" $packages >&2
    exit 1
fi
missing=
for p in $packages; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] ||
        missing="$missing $p"
done
[ -n "$missing" ] || exit 0
as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "deps: run this as root to install:$missing" >&2; exit 1; }
    as_root="sudo"
fi
echo "deps: installing$missing"
$as_root apt-get update -q
$as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends $missing </dev/null
