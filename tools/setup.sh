#!/usr/bin/env bash
# Prepares a checkout: `setup.sh python` builds .venv from requirements.lock, `setup.sh java` finds a JVM for Spark.
# What is missing is installed with the system's package manager if we may, else this says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi; }

# install WHAT MANAGER:PACKAGE... takes the first package that this system offers; names differ between releases.
install() {
    local what=$1 choice manager package command hints=''
    shift
    say "$what not found; asking the package manager for it"
    if have apt-get; then as_root apt-get update >/dev/null 2>&1 || true; fi
    for choice in "$@"; do
        manager=${choice%%:*} package=${choice#*:}
        have "$manager" || continue
        case $manager in
            brew) command=(brew install "$package") ;;
            apk) command=(as_root apk add "$package") ;;
            *) command=(as_root "$manager" install -y "$package") ;;
        esac
        if "${command[@]}" >/dev/null 2>&1; then return; fi
        hints+="${hints:+, or }${command[*]/as_root/sudo}"
    done
    die "could not install it. Please install $what${hints:+: $hints}. Then run this again."
}

# The locked packages have no wheels for 3.15 yet.
python_fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if python_fits "$candidate"; then echo "$candidate"; return; fi
    done
    return 1
}

setup_python() {
    local python uv=uv
    if ! python=$(find_python); then
        [ -z "${PYTHON:-}" ] || die "PYTHON=$PYTHON is not Python 3.11 to 3.14. Name another, or unset it."
        install "Python 3.11 to 3.14" apt-get:python3.13 apt-get:python3.12 apt-get:python3.11 \
            dnf:python3.13 dnf:python3.12 dnf:python3.11 apk:python3 brew:python@3.13
        python=$(find_python) || die "no package has Python 3.11 to 3.14. Install it, and set PYTHON to its path."
    fi

    if ! have uv; then
        uv=.tools/bin/uv
        if [ ! -x "$uv" ]; then
            say "uv not found; installing it into .tools"
            # Debian and Ubuntu package a part of venv on its own.
            "$python" -c 'import ensurepip' 2>/dev/null || install "the venv module" "apt-get:${python##*/}-venv"
            "$python" -m venv --clear .tools
            .tools/bin/pip install --quiet --disable-pip-version-check uv
        fi
    fi

    if ! python_fits .venv/bin/python; then
        rm -rf .venv
        "$uv" venv --quiet --python "$python" .venv
    fi
    # The copy tells which lock .venv was made from, so that an edit of pyproject.toml alone needs no network.
    if ! cmp -s requirements.lock .venv/requirements.lock; then
        say "installing the locked packages into .venv"
        # Compiled now: Spark starts many a process, and where Python may not write they would all compile again.
        "$uv" pip sync --quiet --compile-bytecode --python .venv/bin/python --require-hashes requirements.lock
        cp requirements.lock .venv/requirements.lock
    fi
    "$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
    .venv/bin/python -m compileall -q src
}

java_fits() {
    local version
    version=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}

setup_java() {
    if java_fits; then return; fi
    [ -z "${JAVA_HOME:-}" ] || die "JAVA_HOME=$JAVA_HOME is not Java 17 or newer, as Spark needs. Change or unset it."
    install "Java 17 or newer" apt-get:openjdk-17-jre-headless apt-get:openjdk-21-jre-headless \
        dnf:java-21-openjdk-headless dnf:java-17-openjdk-headless apk:openjdk21-jre-headless brew:openjdk@21
    if ! java_fits && have brew; then
        # Homebrew keeps its JDK out of PATH; the Makefile looks for this link.
        mkdir -p .tools
        ln -sfn "$(brew --prefix openjdk@21)/libexec/openjdk.jdk/Contents/Home" .tools/java
        export JAVA_HOME=.tools/java
    fi
    java_fits || die "Java was installed but is not in PATH. Set JAVA_HOME to its directory, and run this again."
}

case "${1:-}" in
    python) setup_python ;;
    java) setup_java ;;
    *) die "usage: tools/setup.sh python|java" ;;
esac
