"""Command analysis: programs that run other programs, wildcards in command rules, and the files that commands execute.

The table follows the programs that GTFOBins lists with a way to run a command.
"""

import glob
import hashlib
import os
import re
import shlex
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePosixPath

import msgspec

from atlas_agents.core.errors import ConfigError, ToolFailed

ANY, REST = "*", "**"
"""Wildcards of a command rule: any one argument, and any further arguments."""
_MAX_HASHED = 256 * 1024 * 1024
_MAX_SCANNED = 64 * 1024
_MAX_FILES, _MAX_FOLDERS, _MAX_NAME = 1000, 50, 4096
_VERSION = re.compile(r"[-.]?\d[\d.]*$")
_VERSIONED = re.compile(r"(bash|lua|luajit|node|perl|php|pypy|python|ruby|zsh)(?=[-.\d])")
_SEPARATORS = re.compile(r"[\s;&|<>()`'\"$={},]+")
_GLOB = re.compile(r"[*?[]")
_EXPANSION = re.compile(r"[$`{~]|[*?[][^\s]*/")
"""Shell syntax whose result is not known before the command runs."""
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(.+)$", re.MULTILINE)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


class Wrapper(msgspec.Struct, frozen=True):
    """A program that runs the command after its own options: those without a value, and those with one."""

    flags: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    operands: int = 0
    """Number of its own arguments before the command."""


class WildcardLimit(msgspec.Struct, frozen=True):
    """Restriction of a rule's wildcards: they match no options at all, or none that run programs or write files."""

    options: bool = True
    refused: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    """If not empty, the only arguments that they match."""

    def permits(self, argument: str) -> bool:
        if self.names:
            return argument in self.names
        return not argument.startswith("-") or argument == "-" or (self.options and not self.refuses(argument))

    def refuses(self, argument: str) -> bool:
        """Return whether an argument is one of the refused options."""
        name = argument.partition("=")[0]
        return any(_is_option(name, each) for each in self.refused)


_FREE, _OPERANDS = WildcardLimit(), WildcardLimit(options=False)

WRAPPERS = {
    "env": Wrapper(("-i", "-0", "-", "--ignore-environment"), ("-u", "-C")),
    "ionice": Wrapper(("-t",), ("-c", "-n")),
    "nice": Wrapper((), ("-n",)),
    "nohup": Wrapper(),
    "setsid": Wrapper(("-w", "-f", "-c", "--wait", "--fork", "--ctty")),
    "stdbuf": Wrapper((), ("-i", "-o", "-e")),
    "time": Wrapper(("-p", "-v"), ("-f",)),
    "timeout": Wrapper(("--foreground", "--preserve-status", "-v", "-f", "-p"), ("-s", "-k"), 1),
}
"""Programs that run the command they are given. A rule must name that command, and its wildcards are checked too."""

INTERPRETERS = {
    **dict.fromkeys(("ash", "bash", "dash", "ksh", "sh", "zsh"), ("-e", "-u", "-x", "-eu", "-ex", "-eux")),
    **dict.fromkeys(("lua", "luajit", "node", "nodejs", "php"), ()),
    **dict.fromkeys(("perl", "ruby"), ("-w",)),
    **dict.fromkeys(("pypy", "python"), ("-u", "-B", "-E", "-s", "-S", "-I", "-O", "-q")),
}
"""Interpreters with the options that may precede a script. A rule must name the script before a wildcard."""

LIMITED: dict[str, tuple[int, WildcardLimit]] = {
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk", "sed"), (1, _OPERANDS)),
    **dict.fromkeys(("fd", "fdfind"), (0, WildcardLimit(refused=("--exec", "--exec-batch", "-x", "-X")))),
    "find": (0, WildcardLimit(refused=("-exec*", "-ok*", "-delete*", "-fprint*", "-fls*", "-files0*"))),
    "rg": (0, WildcardLimit(refused=("--pre", "--pre-glob", "--hostname-bin"))),
    "sort": (0, WildcardLimit(refused=("--compress-program", "--output", "--temporary-directory", "-o", "-T"))),
    "tar": (
        1,
        WildcardLimit(
            options=False,
            refused=(
                *("--use-compress-program", "--to-command", "--checkpoint-action", "--info-script", "-I", "-F"),
                *("--new-volume-script", "--rsh-command", "--rmt-command"),
            ),
        ),
    ),
}
"""Programs with options that run others: how many arguments must precede a wildcard, and what it cannot match."""
_SCRIPT_OPTIONS = {"-e", "-f", "-n", "-E", "-r", "-s", "-u", "-z", "-i", "--expression", "--file", "--quiet", "--posix"}
"""Options of sed and awk after which an argument is a script, not the value of the option."""

_GIT_FLAGS, _GIT_VALUES = ("--no-pager", "-P", "--literal-pathspecs", "--no-optional-locks"), ("-C",)
_GIT_READ = WildcardLimit(
    refused=("--output", "--ext-diff", "--textconv", "--filters", "--open-files-in-pager", "-O", "--exec")
)
_GIT_WRITE = WildcardLimit(options=False, refused=("--upload-pack", "--receive-pack", "--exec"))
_GIT: dict[str, tuple[int, WildcardLimit]] = {
    **dict.fromkeys(("blame", "cat-file", "describe", "diff", "grep", "log", "ls-files", "ls-tree"), (0, _GIT_READ)),
    **dict.fromkeys(("merge-base", "name-rev", "rev-list", "rev-parse", "shortlog", "show", "status"), (0, _GIT_READ)),
    **dict.fromkeys(("add", "branch", "checkout", "cherry-pick", "commit", "merge", "mv", "reset"), (0, _GIT_WRITE)),
    **dict.fromkeys(("restore", "revert", "rm", "stash", "switch", "tag"), (0, _GIT_WRITE)),
    **dict.fromkeys(("fetch", "pull", "push"), (1, _GIT_WRITE)),  # another folder as the remote would run its hooks
}
"""Subcommands of git that may have wildcards, as in `LIMITED`."""

EXACT = frozenset(
    """
    aa-exec abduco ack acr addr2line ag agetty airflow alacritty amm anacron ansible ansible-console
    ansible-playbook ansible-test ant aoss apk apport-cli apptainer apt apt-get aptitude ar arch arch-nspawn aria2c
    as asdf asterisk at autoconf autoheader autoreconf autossh ava aws az babel bashbug bat batcat batch bats bazel
    bazelisk bb bconsole bdb bee blender bmake borg bpftrace brew bsdtar bsh buck buf buildah bun bundle bundler
    bunx busctl busybox bwrap byebug byobu bzmore c++ c89 c99 cabal caffeinate capsh cargo catchsegv cc ccache ccl
    cdist celery certbot cgexec check_by_ssh check_ssl_cert chef chez chezmoi choom chpst chronic chroot chrt clang
    clang++ clang-tidy clisp clojure cmake cmd cobc code codex colormake composer conda corepack coverage cowsay
    cowthink cpack cpan cpio cpp cprofile cpulimit crash crictl crontab crun crystal csh csi csvtool ctags ctest ctr
    curl cvs cypress d8 dart dbclient dbt dbus-run-session dc debugfs delta deno dhclient direnv distcc distrobox
    django-admin dlv dmd dmesg dmsetup dnf dnsmasq doas docker docker-compose doctest dotnet dpkg dropbear dstat
    dtach dtruss duckdb dumb-init dune dvips easy_install easyrsa eatmydata eb ecl ed elinks elixir elvis elvish
    emacs emacsclient emerge enscript entr envdir envuidgid erl esbuild escript eslint ex execlineb exiftool expect
    f2py fab facter fail2ban-client fakechroot fakeroot faketime fastfetch fcrontab fennel ffmpeg firejail fish
    flask flatpak flatpak-spawn flock flutter fnm foot foreman forever forge fossil ftp fzf g++ gcc gcloud gdb gdc
    gem genie gforth gfortran gh ghc ghci ghostscript gimp ginsh gitk gjs gmake gnome-terminal gnumake gnuplot go
    gold gosh gosu gp gpg gradle grc groff groovy grunt gs gsi gtester guile guix gulp gunicorn hatch helix helm
    heroku hg hhvm honcho hping3 hub hx hy hyperfine i386 icecc idlelib iex ifne iftop incrontab invoke ion ip
    ipython irb ispell janet java javac jbang jed jest jj jjs joe journalctl jruby jrunscript js jsc jshell jtag
    julia jupyter just jython kak karma kitty knife konsole kotlin kotlinc ksu kubectl latex latexmk launchctl
    lazygit ld ld.bfd ld.gold ld.lld ld.so ldc ldconfig ldd lein less lesspipe lftp libreoffice libtool lima links
    linux32 linux64 lksh lld lldb loginctl logrotate logsave loksh lto-dump ltrace lualatex luarocks luatex lxc
    lxc-attach lxc-execute lxd lynx m4 machinectl mage magento mail make mamba man mariadb maxima meson mg micro
    micromamba micropython minicom mise mispipe mit-scheme mix mksh mocha mongo mongosh moon more mosh mosh-server
    mprocs mpv msbuild msfconsole msgexec msgfilter mujs multitime mutt mvn mypy mysql nano nc ncat ncdu ncftp ne
    needrestart neofetch neomutt neovim nerdctl newlisp next nextflow ng nginx nim nimble ninja nix nix-shell nm
    nmap nodemon nosetests nox npm npx nroff nsenter nu numactl nvi nvim nx objcopy objdump ocaml octave odin oil
    opam open opencode openssl openvpn openvt opkg osascript osh overmind pacman pandoc pants parallel patch pdb
    pdflatex pdftex pdksh pdm pdsh pee perf perlbug petite pexec pg phpunit pic pico picolisp pidproxy pidstat pil
    pip pipx pixi pkexec pkg playwright plink plymouth pm2 pnpm pnpx podman poe poetry pony posh powershell
    pre-commit prettier prlimit procmail profile proot protoc proxychains pry psftp psql pssh pulumi puppet pwsh
    pydoc pyenv pylint qemu qjs r racket rails rake raku rakudo ranger ranlib rbash rbenv rc rdmd rebar3 redo reflex
    remake restic rhino rlwrap rollup rpm rpmdb rpmquery rpmverify rscript rsh rspec rsync rsyslogd rtorrent
    run-mailcap run-parts runc runpy runscript runuser rustc rustup rxvt rye sage salt salt-call samu sandbox-exec
    sash sbcl sbt scala scala-cli scanmem sccache scheme schroot scons scp screen script scrot scsh sdiff service
    setarch setlock setpriv setuidgid sftp sg singularity slsh smbclient snakemake snap socat socket soffice
    softlimit sphinx-build split sqlite3 sqlmap ssh ssh-agent ssh-keygen sshfs sshpass sshuttle stack
    start-stop-daemon strace streamlit strip stunnel su su-exec sudo supervisord svn swift swiftc sysctl systemctl
    systemd-cat systemd-inhibit systemd-nspawn systemd-resolve systemd-run task taskset tasksh tcc tclsh tcpdump
    tcsh tdbtool telnet terraform tex tig timedatectl timeit tini tmate tmux tmuxinator toolbox top torify torsocks
    tox toybox trace ts-node tsc tshark tsocks tsx tup turbo typst uname26 unbuffer unshare urxvt usql uv uvx
    vagrant valgrind vercel vi vidir view vigr vile vim vim.athena vim.basic vim.gtk vim.motif vim.nox vim.tiny
    vimdiff vipe vipw virsh vite vitest volatility volta w3m waf wasmer wasmtime watch watchexec webpack wezterm
    wg-quick wget wine wireshark wish wrangler wsl x-terminal-emulator x86_64 xargs xcodebuild xcrun xdg-mime
    xdg-open xdg-user-dir xdotool xfce4-terminal xonsh xterm xvfb-run xzless xzmore yacas yarn yash yt-dlp yum
    zathura zellij zic zig zip zless zmore zypper
    """.split()  # noqa: SIM905 - six hundred names
)
"""Other programs that can run a program or code from their arguments. A rule for one must be a whole command."""
_GNU = ("chroot", "make", "split", "xargs")

SCRIPT_SUFFIXES = (
    *(".sh", ".bash", ".zsh", ".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".jsx", ".rb", ".pl"),
    *(".php", ".lua", ".mk", ".awk", ".sed", ".jar", ".wasm", ".so", ".node", "Makefile", "makefile"),
)
SYSTEM_FOLDERS = tuple(
    f"/{name}/"
    for name in ("bin", "dev", "etc", "lib", "lib32", "lib64", "nix/store", "proc", "sbin", "snap", "sys", "usr")
)
"""Folders that only an administrator can change."""
_PROJECT_FILES = {
    "cargo": ("Cargo.toml", "build.rs"),
    "just": ("justfile", "Justfile"),
    "make": ("GNUmakefile", "makefile", "Makefile"),
    **dict.fromkeys(("npm", "npx", "pnpm", "yarn", "bun"), ("package.json",)),
    "pytest": ("conftest.py", "pytest.ini", "pyproject.toml"),
    "rake": ("Rakefile",),
    **dict.fromkeys(("uv", "poetry", "pdm", "hatch"), ("pyproject.toml", "uv.toml", "uv.lock", "poetry.toml")),
    "deno": ("deno.json", "deno.jsonc"),
    "docker": ("Dockerfile", "compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
}
"""Files that programs run from their folder although the command does not name them."""
_LOADERS = {".", "source", "eval", "exec", "from", "import", "require", "include"}


def program_name(word: str) -> str:
    """Return the name of a program as the tables have it: without its folder and version, in lower case."""
    name = PurePosixPath(word).name.lower()
    if found := _VERSIONED.match(name):  # python3-dbg, ruby3.1t
        return found[1]
    name = name if name in EXACT else _VERSION.sub("", name) or name
    if name.startswith("g") and (name[1:] in WRAPPERS or name[1:] in LIMITED or name[1:] in _GNU):  # on macOS
        return name[1:]
    cross, _, tool = name.rpartition("-")
    return tool if "-" in cross and tool in EXACT else name  # aarch64-linux-gnu-gcc


def runs_code(word: str) -> bool:
    """Return whether a word names a program or shell builtin that runs code from its arguments or from files."""
    name = program_name(word)
    return name in WRAPPERS or name in INTERPRETERS or name in EXACT or word in _LOADERS or name in ("awk", "sed")


@lru_cache(1024)
def limit_wildcards(pattern: tuple[str, ...], where: str = "") -> WildcardLimit:
    """Return the restriction of the wildcards of a command rule.

    Raise ConfigError, with the form to write instead, if they could match any program or code.
    """
    fixed = next((index for index, word in enumerate(pattern) if word in (ANY, REST)), len(pattern))
    if fixed == len(pattern):
        return _FREE
    name, literals = program_name(pattern[0]), pattern[1:fixed]
    if name in WRAPPERS:
        if (inner := _wrapped_command(WRAPPERS[name], pattern)) is not None:
            return limit_wildcards(inner, where)
        form = (*pattern[:1], *(("60",) if name == "timeout" else ()), "ls", REST)
        raise _refusal(where, pattern, f"{name} runs the program that its arguments name", form)
    if name in INTERPRETERS:
        return _limit_interpreter(pattern, literals, where)
    if name == "git":
        return _limit_git(pattern, literals, where)
    if name in EXACT:
        raise _refusal(where, pattern, f"{name} can run any program or code", None)
    if name not in LIMITED:
        return _FREE
    count, limit = LIMITED[name]
    given = len(literals) if name == "tar" else sum(_is_script(literals, index) for index in range(len(literals)))
    if given < count or any(map(limit.refuses, literals)):
        options = {"find": (".", "-name"), "sed": ("-n", "1,99p"), "tar": ("-tf",), "sort": (), "rg": (), "fd": ()}
        form = (pattern[0], *options.get(name, ("{print $1}",)), REST)
        raise _refusal(where, pattern, f"{name} can run commands", form)
    return limit


def _wrapped_command(wrapper: Wrapper, pattern: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the part of a rule that is the inner command; None if its name is not fixed."""
    operands, words = wrapper.operands, list(pattern[1:])
    while words and words[0] not in (ANY, REST):
        word = words[0]
        if word in wrapper.values:
            del words[:2]
        elif word in wrapper.flags or ("=" in word and not word.startswith("-")):
            del words[0]
        elif word.startswith("-"):
            return None
        elif operands:
            operands -= 1
            del words[0]
        else:
            return tuple(words)
    return None


def _limit_interpreter(pattern: tuple[str, ...], literals: tuple[str, ...], where: str) -> WildcardLimit:
    name = program_name(pattern[0])
    start = next((index for index, word in enumerate(literals) if word not in INTERPRETERS[name]), len(literals))
    script = literals[start : start + 2]
    if name in ("python", "pypy") and script[:1] == ("-m",) and len(script) == 2:
        return limit_wildcards(pattern[start + 2 :], where)
    if not script or script[0].startswith("-"):
        raise _refusal(
            where, pattern, f"{name} runs any script, and code in its arguments", (pattern[0], "SCRIPT", REST)
        )
    return _FREE


def _limit_git(pattern: tuple[str, ...], literals: tuple[str, ...], where: str) -> WildcardLimit:
    words = list(literals)
    while words and (words[0] in _GIT_FLAGS or (words[0] in _GIT_VALUES and len(words) > 1)):
        del words[: 2 if words[0] in _GIT_VALUES else 1]
    if not words and pattern[-1] == ANY and len(pattern) == len(literals) + 2:
        return WildcardLimit(names=frozenset(_GIT))  # neither an option nor an alias
    subcommand, given = (words[0], words[1:]) if words else ("", [])
    count, limit = _GIT.get(subcommand, (0, _FREE))
    if limit is _FREE or sum(not word.startswith("-") for word in given) < count or any(map(limit.refuses, given)):
        form = ("git", subcommand, "origin", ANY) if count else ("git", "log", REST)
        raise _refusal(where, pattern, "git runs programs that its options, aliases and remotes name", form)
    return limit


def _is_script(literals: tuple[str, ...], index: int) -> bool:
    """Return whether an argument of sed or awk is a script, or of another program an operand."""
    before = literals[index - 1] if index else ""
    return not literals[index].startswith("-") and (not before.startswith("-") or before in _SCRIPT_OPTIONS)


def _refusal(where: str, pattern: Sequence[str], reason: str, form: Sequence[str] | None) -> ConfigError:
    rule = msgspec.json.encode(list(pattern)).decode()
    example = f"{msgspec.json.encode(list(form)).decode()}, or " if form else ""
    message = f"{rule} would allow every program without approval: {reason}"
    return ConfigError(f"{where}: {message}. Write {example}the whole command without wildcards")


def _is_option(name: str, refused: str) -> bool:
    """Return whether an option is a refused one, even if abbreviated or combined with other one-letter options."""
    if refused.endswith("*"):
        return name.startswith(refused[:-1])
    if refused.startswith("--"):
        return len(name) > 2 and refused.startswith(name)
    return not name.startswith("--") and name.startswith("-") and refused[1] in name


def find_program(name: str, cwd: str, path: str) -> str:
    """Return the path of a program; raise ToolFailed if there is none."""
    found = os.path.join(cwd, name) if "/" in name else shutil.which(name, path=path)
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK):
        raise ToolFailed(f"program not found: {name!r}")
    return found


def hash_file(path: str, *, max_read: int | None = None) -> str:
    """Return the SHA-256 of a file; of a larger one than `max_read`, a hash of its version.

    Every change sets a new ctime, which cannot be forged, so the version identifies the content. ToolFailed if the file
    cannot be read.
    """
    try:
        info = os.stat(path)
    except OSError as error:
        raise ToolFailed(f"cannot read {path}: {error.strerror}") from None
    version = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    if info.st_size > (_MAX_HASHED if max_read is None else max_read):
        return hashlib.sha256(repr(version).encode()).hexdigest()
    return _hash_version(path, *version)


@lru_cache(8192)
def _hash_version(path: str, *version: int) -> str:
    """Return the SHA-256 of a file, cached by its version."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ToolFailed(f"cannot read {path}: {error.strerror}") from None


def nested_commands(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a command, the command that it wraps, and so on: `timeout 60 nice ls` contains `nice ls` and `ls`."""
    found = [tuple(argv)]
    while (wrapper := WRAPPERS.get(program_name(found[-1][0]))) and (inner := _wrapped_command(wrapper, found[-1])):
        found.append(inner)
    return found


def split_code(argv: Sequence[str], cwd: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a command after the script, module or code that its program runs; what follows are arguments for that."""
    words = nested_commands(argv)[-1]
    flags = INTERPRETERS.get(program_name(words[0]))
    end = 1 if flags is None else len(words)
    for index, word in enumerate(words[1:] if flags is not None else (), 1):
        before = words[index - 1]
        is_operand = index == 1 or not before.startswith("-") or before in (flags or ())
        if before in ("-m", "-c", "-e", "--eval") or (is_operand and _file_mode(os.path.join(cwd, word))):
            end = index + 1
            break
    arguments = words[end:]
    return tuple(argv[: len(argv) - len(arguments)]), arguments


def hash_executed_files(
    argv: Sequence[str],
    cwd: str,
    skip: Callable[[str], bool],
    *,
    any_file: bool | None = None,
    follow: bool = True,
) -> dict[str, str]:
    """Return the hash of each file that a command names and will probably run, and of files that those name.

    Every argument is searched for names, because it may be code: `sh -c '. ./run.sh'`. If a name may be computed, as in
    `. ./$NAME`, all scripts in the folder count. Files for which `skip` returns True are not opened. `any_file` says
    whether other files than scripts count; by default, if the command names an interpreter. With `follow`, scripts are
    searched too.
    """
    words = list(dict.fromkeys(word for argument in argv for word in _words(argument)))
    folders = _named_folders(words, cwd)
    any_file = any(map(runs_code, words)) if any_file is None else any_file
    named = [path for folder in folders for path in _candidates(words, folder, any_file)]
    named += [path for folder in folders for path in _implied_files(words, folder)]
    is_computed = any_file and any(map(_EXPANSION.search, argv))
    beside = [path for folder in folders for path in _scripts_in(folder)] if is_computed else []
    normal = [os.path.normpath(path) for path in beside]
    found = {path: _hash_readable(path, _MAX_SCANNED) for path in normal if not skip(path)}
    pending, searched = deque(named), set[str]()
    while pending and len(searched) < len(named) + _MAX_FILES:
        path = os.path.normpath(pending.popleft())
        if path not in searched and not skip(path):
            searched.add(path)
            found[path] = _hash_readable(path)
            pending.extend(_named_in_script(path, cwd) if follow and _is_text_script(path) else ())
    return found


def _hash_readable(path: str, max_read: int | None = None) -> str:
    """Return the hash of a file; empty if it cannot be read, because then the command cannot read it either."""
    try:
        return hash_file(path, max_read=max_read)
    except ToolFailed:
        return ""


def _words(text: str) -> list[str]:
    """Return the words of an argument: as a whole, split at shell syntax, and with quotes resolved."""
    try:
        quoted = shlex.split(text)
    except ValueError:
        quoted = []
    return [text, *filter(None, _SEPARATORS.split(text)), *quoted]


def _named_folders(words: Iterable[str], cwd: str) -> list[str]:
    folders = [cwd]
    for word in words:
        if "\0" in word or word in (".", "/") or len(word) > _MAX_NAME:
            continue
        for folder in tuple(folders):
            path = os.path.normpath(os.path.join(folder, word))
            if path not in folders and os.path.isdir(path):
                folders.append(path)
        if len(folders) > _MAX_FOLDERS:
            raise ToolFailed(f"the command names more than {_MAX_FOLDERS} folders; put it into a script, and run that")
    return folders


def _scripts_in(folder: str) -> Iterator[str]:
    """Yield the scripts directly in a folder: by suffix or permission, or because the name has no suffix."""
    if f"{folder}/".startswith(SYSTEM_FOLDERS):
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            mode = _file_mode(entry.path)
            if mode and (mode & 0o111 or "." not in entry.name or entry.name.endswith(SCRIPT_SUFFIXES)):
                yield entry.path


def _candidates(words: Iterable[str], folder: str, any_file: bool) -> Iterator[str]:
    """Yield the files in a folder that the words name; without `any_file`, only those that look like scripts."""
    for word in words:
        if "\0" in word or len(word) > _MAX_NAME:
            continue
        matches: list[str] = []
        if _GLOB.search(word) and not _GLOB.search(os.path.dirname(word)):  # others could match the whole file system
            with suppress(ValueError):
                matches = glob.glob(os.path.join(glob.escape(folder), word))
        module = word.replace(".", "/")
        names = [os.path.join(folder, word), *matches]
        if any_file and _MODULE.fullmatch(word):
            names += [os.path.join(folder, f"{module}{end}") for end in (".py", "/__init__.py", "/__main__.py")]
        for path in names:
            if (mode := _file_mode(path)) and (any_file or mode & 0o111 or path.endswith(SCRIPT_SUFFIXES)):
                yield path


def _file_mode(path: str) -> int:
    """Return the mode of a regular file; 0 for everything else."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return 0
    return mode if stat.S_ISREG(mode) else 0


def _implied_files(words: Iterable[str], folder: str) -> Iterator[str]:
    """Yield the files that programs run although the command does not name them: Makefile, hooks of git."""
    programs = {program_name(word) for word in words}
    for program in programs & _PROJECT_FILES.keys():
        yield from (path for name in _PROJECT_FILES[program] if _file_mode(path := os.path.join(folder, name)))
    if "git" in programs:
        yield from _git_files(folder)


def _git_files(folder: str) -> Iterator[str]:
    """Yield the settings and the hooks of the repository that contains a folder."""
    tops = [folder, *map(str, PurePosixPath(folder).parents)]
    top = next((top for top in tops if os.path.lexists(os.path.join(top, ".git"))), None)
    if top is None:
        return
    git = os.path.join(top, ".git")
    settings = [path for name in ("config", "config.worktree") if _file_mode(path := os.path.join(git, name))]
    yield from settings if os.path.isdir(git) else [git]
    hooks = [os.path.join(git, "hooks")]
    for path in settings:
        for line in _read_text(path).splitlines():
            key, _, value = line.partition("=")
            if key.strip().lower() == "hookspath":
                hooks.append(os.path.join(top, os.path.expanduser(value.strip().strip('"'))))
    for each in hooks:
        yield from (path for path in glob.glob(os.path.join(glob.escape(each), "*")) if _file_mode(path) & 0o111)


def read_shebang(path: str) -> list[str]:
    """Return the interpreter that the first line of a script names, with its arguments; empty for other files."""
    line = _read_text(path, 512).partition("\n")[0]
    words = line[2:].split() if line.startswith("#!") else []
    if words and program_name(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words


def _is_text_script(path: str) -> bool:
    return path.endswith(SCRIPT_SUFFIXES) or bool(read_shebang(path))


def _named_in_script(path: str, cwd: str) -> Iterator[str]:
    """Yield the scripts that a script names, relative to the working directory or to itself."""
    text = _read_text(path)
    words = [word for word in _SEPARATORS.split(text) if word and not _GLOB.search(word)]
    named = [word for word in words if "/" in word or word.endswith(SCRIPT_SUFFIXES)]
    loaded = [word for before, word in pairwise(words) if before in _LOADERS or program_name(before) in INTERPRETERS]
    if path.endswith(".py"):
        loaded += [word for line in _IMPORT.findall(text) for word in re.split(r"[,\s]+", line)]
    for folder in dict.fromkeys((cwd, os.path.dirname(path))):
        yield from _candidates(dict.fromkeys(named), folder, any_file=False)
        yield from _candidates(dict.fromkeys(loaded), folder, any_file=True)


def _read_text(path: str, size: int = _MAX_SCANNED) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""
