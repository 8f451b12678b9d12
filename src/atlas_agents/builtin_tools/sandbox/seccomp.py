"""Seccomp filter (classic BPF): an allow-list of the system calls that ordinary programs need.

A call that is not listed fails with ENOSYS, as on an older kernel, so that libraries use their fallback; a call of a
newer kernel is refused as well. Calls that could reach out of the sandbox are allowed only with certain arguments.
"""

import platform
import struct
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _EINVAL, _ENOTTY, _ENOSYS, _EPROTONOSUPPORT, _EOPNOTSUPP, _EAFNOSUPPORT = 1, 22, 25, 38, 93, 95, 97
_NUMBER, _ARCH = 0, 4
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # set in system call numbers of the x32 ABI

# Each entry is name:number on x86_64:number on aarch64, or name:number if they are the same.
_ALWAYS = """
read:0:63 write:1:64 close:3:57 stat:4: fstat:5:80 lstat:6: poll:7: lseek:8:62 pread64:17:67 pwrite64:18:68
readv:19:65 writev:20:66 preadv:295:69 pwritev:296:70 preadv2:327:286 pwritev2:328:287 access:21:
faccessat:269:48 faccessat2:439 pipe:22: pipe2:293:59 select:23: pselect6:270:72 ppoll:271:73 dup:32:23 dup2:33:
dup3:292:24 sendfile:40:71 splice:275:76 tee:276:77 copy_file_range:326:285 fcntl:72:25 flock:73:32 fsync:74:82
fdatasync:75:83 sync_file_range:277:84 truncate:76:45 ftruncate:77:46 getdents:78: getdents64:217:61
getcwd:79:17 chdir:80:49 fchdir:81:50 rename:82: renameat:264:38 renameat2:316:276 mkdir:83: mkdirat:258:34
rmdir:84: link:86: linkat:265:37 unlink:87: unlinkat:263:35 symlink:88: symlinkat:266:36 readlink:89:
readlinkat:267:78 newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 umask:95:166 close_range:436
fadvise64:221:223 readahead:187:213 cachestat:451 epoll_create:213: epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232: epoll_pwait:281:22 epoll_pwait2:441 eventfd:284: eventfd2:290:19 fgetxattr:193:10
flistxattr:196:13
mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214 mremap:25:216 msync:26:227 mincore:27:232 madvise:28:233
mlock:149:228 mlock2:325:284 munlock:150:229 mlockall:151:230 munlockall:152:231 membarrier:324:283
pkey_mprotect:329:288 pkey_alloc:330:289 pkey_free:331:290 get_mempolicy:239:236 map_shadow_stack:453 mseal:462
fork:57: vfork:58: execve:59:221 execveat:322:281 exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95
getpid:39:172 gettid:186:178 getppid:110:173 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177
getresuid:118:148 getresgid:120:150 getgroups:115:158 setuid:105:146 setgid:106:144 setreuid:113:145
setregid:114:143 setresuid:117:147 setresgid:119:149 setfsuid:122:151 setfsgid:123:152 setgroups:116:159
capget:125:90 capset:126:91 getpgid:121:155 getpgrp:111: getsid:124:156 setpgid:109:154 setsid:112:157
kill:62:129 tkill:200:130 tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133
sigaltstack:131:132 signalfd:282: signalfd4:289:74 pause:34: futex:202:98 futex_waitv:449 futex_wake:454
futex_wait:455 futex_requeue:456 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293 arch_prctl:158:
seccomp:317:277 landlock_create_ruleset:444 landlock_add_rule:445 landlock_restrict_self:446 sched_yield:24:124
sched_getaffinity:204:123 sched_getparam:143:121 sched_getscheduler:145:120 sched_getattr:315:275
sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_rr_get_interval:148:127 getpriority:140:141
ioprio_get:252:31 getrlimit:97:163 setrlimit:160:164 getrusage:98:165 getcpu:309:168 restart_syscall:219:128
nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169
time:201: times:100:153 alarm:37: getitimer:36:102 setitimer:38:103 timer_create:222:107 timer_settime:223:110
timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 timerfd_create:283:85 timerfd_settime:286:86
timerfd_gettime:287:87 uname:63:160 sysinfo:99:179 getrandom:318:278
sendmsg:46:211 recvfrom:45:207 recvmsg:47:212 recvmmsg:299:243 shutdown:48:210 getsockname:51:204
getpeername:52:205 setsockopt:54:208 getsockopt:55:209
"""
# With namespaces, these see only the sandbox's own files, processes and network.
_WITH_NAMESPACES = """
connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242 sendto:44:206 sendmmsg:307:269 chmod:90:
fchmod:91:52 fchmodat:268:53 fchmodat2:452 chown:92: fchown:93:55 lchown:94: fchownat:260:54 utime:132:
utimes:235: futimesat:261: utimensat:280:88 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 getxattr:191:8
lgetxattr:192:9 listxattr:194:11 llistxattr:195:12 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16
inotify_init:253: inotify_init1:294:26 inotify_add_watch:254:27 inotify_rm_watch:255:28
"""
# Refused as a command without privileges expects it: with EPERM.
_REFUSED = """
ptrace:101:117 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 unshare:272:97 setns:308:268
reboot:169:142 sethostname:170:161 setdomainname:171:162 settimeofday:164:170 clock_settime:227:112 acct:163:89
swapon:167:224 swapoff:168:225 process_vm_readv:310:270 process_vm_writev:311:271
"""
# Allowed with certain arguments only, or refused with a special error.
_CHECKED = """
open:2: openat:257:56 creat:85: mknod:133: mknodat:259:33 socket:41:198 socketpair:53:199 clone:56:220
prctl:157:167 personality:135:92 ioctl:16:29 prlimit64:302:261 sched_setaffinity:203:122 sched_setparam:142:118
sched_setscheduler:144:119 sched_setattr:314:274 setpriority:141:140 ioprio_set:251:30 fallocate:285:47
"""

SUPERVISED = ("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utimensat")
"""System calls that change file metadata. Landlock does not control them: a supervisor makes them for the command."""
SUPERVISED_NAMES = (
    *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "rmdir"),
    *("mkdir", "mkdirat", "mknod", "mknodat", "truncate", "creat"),
)
"""System calls that change names in a folder. Landlock cannot exclude a path, so a supervisor makes these as well."""
_XATTR = (
    *("setxattr", "lsetxattr", "fsetxattr", "getxattr", "lgetxattr", "listxattr", "llistxattr"),
    *("removexattr", "lremovexattr", "fremovexattr"),
)

_SETID = 0o6000  # setuid and setgid: such a file would outlive the sandbox
_DEVICE = 0o20000  # the bit shared by character and block devices
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW…
_FAST_OPEN = 0x20000000  # MSG_FASTOPEN
_UNIX, _IPV4, _IPV6, _NETLINK = 1, 2, 10, 16
_PROTOCOLS = (0, 1, 6, 17, 58)  # the default, ICMP, TCP, UDP, ICMPv6
_STREAM, _SEQUENCED_PACKETS = 1, 5  # unlike datagram sockets, these cannot send to another address
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
_PRCTL = (
    *(1, 2, 3, 7, 8, 15, 16, 21, 22, 23, 27, 29, 30, 36, 37, 38, 39, 40, 41, 42, 47),  # names, parents, capabilities
    *(50, 51, 52, 53, 54, 55, 56, 60, 61, 63, 64, 65, 66, 0x53564D41),  # vector and pointer features, memory
)  # not PR_SET_DUMPABLE: the memory of such a process cannot be measured
_FCNTL = (1024, 1026)  # F_SETLEASE makes others wait until they can open a file; F_NOTIFY watches a folder
_IOCTL = (
    *range(0x5401, 0x5412),  # terminals; not 0x5412, TIOCSTI, which types into them
    *(0x5413, 0x5414, 0x5415, 0x541B, 0x5420, 0x5421, 0x5422, 0x5423, 0x5424, 0x5429, 0x5441),
    *(0x802C542A, 0x402C542B, 0x402C542C, 0x402C542D, 0x80045430, 0x40045431, 0x80045439),
    *(0x5450, 0x5451, 0x5452, 0x5460),  # close-on-exec, non-blocking, size
    *(0x80086601, 0x801C581F, 0xC020660B, 0x40049409, 0x4020940D),  # read file attributes and extents, clone
    *(0x8905, *range(0x8910, 0x8914), 0x8915, 0x8917, 0x8919, 0x891B, 0x891D, 0x8921, 0x8927, 0x8933),  # interfaces
)


def _parse(table: str) -> dict[str, tuple[int, int]]:
    """Return name → numbers of a table above; -1 where an architecture does not have the call."""
    numbers: dict[str, tuple[int, int]] = {}
    for entry in table.split():
        name, first, *second = entry.split(":")
        numbers[name] = (int(first or -1), int((second or [first])[0] or -1))
    return numbers


_TABLES = {
    name: numbers for each in (_ALWAYS, _WITH_NAMESPACES, _REFUSED, _CHECKED) for name, numbers in _parse(each).items()
}


def syscall_numbers(names: Iterable[str], machine: str | None = None) -> dict[str, int]:
    """Return the numbers of system calls that exist on a machine architecture."""
    column = 0 if (machine or platform.machine()) == "x86_64" else 1
    return {name: _TABLES[name][column] for name in names if _TABLES[name][column] >= 0}


@lru_cache
def build_filter(machine: str | None = None, *, namespaces: bool = True) -> bytes | None:
    """Return the filter for a machine architecture; None if its system call numbers are not known here.

    Without `namespaces`, only socket pairs are allowed, and only file operations that Landlock controls.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, _ARCHITECTURES[machine], if_true=1), _deny(_ENOSYS)]
    steps.append(_step(_LOAD, _NUMBER))
    if machine == "x86_64":
        steps += [_step(_AT_LEAST, _X32_BIT, if_false=1), _deny(_ENOSYS)]
    rules = {name: [_allow()] for name in _parse(_ALWAYS)}
    rules |= {name: [_allow()] for name in _parse(_WITH_NAMESPACES)}
    rules |= {name: [_deny(_EPERM)] for name in _parse(_REFUSED)}
    rules |= _checked_rules()
    rules |= _namespace_rules() if namespaces else _landlock_rules()
    for name, number in syscall_numbers(rules, machine).items():
        steps += _when(number, rules[name])
    return b"".join([*steps, _deny(_ENOSYS)])


def _checked_rules() -> dict[str, Sequence[bytes]]:
    """Return the rules that both kinds of sandboxes share."""
    own_process = _only(0, (0,), _EPERM)
    return {
        **{name: own_process for name in ("prlimit64", "sched_setaffinity", "sched_setparam", "sched_setscheduler")},
        "sched_setattr": own_process,
        "setpriority": [*_require(0, 0, _EPERM), *_only(1, (0,), _EPERM)],  # PRIO_PROCESS
        "ioprio_set": [*_require(0, 1, _EPERM), *_only(1, (0,), _EPERM)],  # IOPRIO_WHO_PROCESS
        "clone": _deny_bits(_NEW_NAMESPACES, 0),
        "prctl": _only(0, _PRCTL, _EINVAL),
        "personality": _only(0, _PERSONALITIES, _EPERM),
        "ioctl": _only(1, _IOCTL, _ENOTTY),
        "fcntl": [_argument(1), *(step for value in _FCNTL for step in _when(value, [_deny(_EINVAL)])), _allow()],
        "fallocate": [_deny(_EOPNOTSUPP)],  # what it reserves is not counted as written
        **{name: _deny_bits(_SETID, mode) for name, mode in (("chmod", 1), ("fchmod", 1), ("creat", 1))},
        **{name: _deny_bits(_SETID, mode) for name, mode in (("fchmodat", 2), ("fchmodat2", 2))},
        **{name: _deny_bits(_SETID | _DEVICE, mode) for name, mode in (("mknod", 1), ("mknodat", 2))},
        **{name: _open_rule(flags) for name, flags in (("open", 1), ("openat", 2))},
    }


def _namespace_rules() -> dict[str, Sequence[bytes]]:
    """Return the rules for sockets in a network namespace: the usual protocols; others, such as vsock, leave it."""
    by_family = [
        *_when(_UNIX, [_allow()]),
        *_when(_IPV4, _only(2, _PROTOCOLS, _EPROTONOSUPPORT)),
        *_when(_IPV6, _only(2, _PROTOCOLS, _EPROTONOSUPPORT)),
        *_when(_NETLINK, _only(2, (0,), _EPROTONOSUPPORT)),
    ]
    return {
        "socket": [_argument(0), *by_family, _deny(_EAFNOSUPPORT)],
        "socketpair": _only(0, (_UNIX,), _EAFNOSUPPORT),
    }


def _landlock_rules() -> dict[str, Sequence[bytes]]:
    """Return the rules for operations that Landlock cannot control: sockets, file metadata and file notifications."""
    connected = [*_require(4, 0, _EPERM), *_require(4, 0, _EPERM, high=True), *_deny_bits(_FAST_OPEN, 3)]
    return {
        "socket": [_deny(_EAFNOSUPPORT)],
        "socketpair": [
            *_require(0, _UNIX, _EAFNOSUPPORT),
            *(_argument(1), _step(_MASK, 0xF)),
            *_return_if((_STREAM, _SEQUENCED_PACKETS), _EPROTONOSUPPORT),
        ],
        "sendto": connected,
        **{name: [_deny(_EPERM)] for name in ("connect", "bind", "listen", "accept", "accept4", "sendmmsg")},
        **{name: [_deny(_EPERM)] for name in ("utime", "utimes", "futimesat")},
        **{name: [_deny(_EOPNOTSUPP)] for name in _XATTR},
        **{name: [_deny(_ENOSYS)] for name in ("inotify_init", "inotify_init1", "inotify_add_watch")},
    }


def _step(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one instruction; `if_true` and `if_false` are how many instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _allow() -> bytes:
    return _step(_RETURN, _ALLOW)


def _deny(errno: int) -> bytes:
    return _step(_RETURN, _ERRNO | errno)


def _argument(index: int, *, high: bool = False) -> bytes:
    """Load the low 32 bits of an argument, in which modes, flags and process IDs fit, or the high ones of a pointer."""
    return _step(_LOAD, 16 + 8 * index + 4 * high)


def _when(value: int, then: Iterable[bytes]) -> list[bytes]:
    """Run steps if the loaded value equals this one; the steps must return."""
    steps = list(then)
    return [_step(_EQUAL, value, if_false=len(steps)), *steps]


def _require(argument: int, value: int, errno: int, *, high: bool = False) -> list[bytes]:
    return [_argument(argument, high=high), _step(_EQUAL, value, if_true=1), _deny(errno)]


def _only(argument: int, values: Collection[int], errno: int) -> list[bytes]:
    return [_argument(argument), *_return_if(values, errno)]


def _return_if(values: Collection[int], errno: int) -> list[bytes]:
    """Allow the call if the loaded value is one of these, and deny it otherwise."""
    tests = [_step(_EQUAL, value, if_true=len(values) - index) for index, value in enumerate(values)]
    return [*tests, _deny(errno), _allow()]


def _deny_bits(bits: int, argument: int) -> list[bytes]:
    return [_argument(argument), _step(_ANY_BIT, bits, if_false=1), _deny(_EPERM), _allow()]


def _open_rule(flags: int) -> list[bytes]:
    check_mode = _deny_bits(_SETID, flags + 1)
    return [_argument(flags), _step(_ANY_BIT, _CREATES, if_false=len(check_mode)), *check_mode, _allow()]
