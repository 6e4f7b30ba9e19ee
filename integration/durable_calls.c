/* Preloaded: records, in order, every call that changes a file or a name below a folder, or makes one durable.

   FILE_CALLS_ROOT is the folder, FILE_CALLS_LOG the file to append to. A line is an operation and what it was done to, fields
   apart by tabs; after a line of "write" stand the bytes. `integration/power_failure.py` reads it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static const char *root;

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)

static void record(const char *line, size_t length, const void *data, size_t size) {
    if (out < 0) {
        REAL(int, "open64", const char *, int, ...);
        out = real(getenv("FILE_CALLS_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    struct iovec parts[2] = {{(void *)line, length}, {(void *)data, size}};
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (real(out, parts, data ? 2 : 1) != (ssize_t)(length + size)) abort();
}

#define RECORD(...) do { char line[4 * PATH_MAX]; int n = snprintf(line, sizeof line, __VA_ARGS__); \
    record(line, (size_t)n, NULL, 0); } while (0)

static int watched(const char *path) {
    if (!root) { root = getenv("FILE_CALLS_ROOT"); if (!root) root = ""; }
    size_t length = strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static int of_descriptor(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return watched(path);
}

static int resolved(int dir, const char *path, char *whole) {
    if (path[0] == '/') { snprintf(whole, PATH_MAX, "%s", path); return watched(whole); }
    char above[PATH_MAX];
    if (dir == AT_FDCWD) { if (!getcwd(above, sizeof above)) return 0; }
    else { char link[64]; snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
           ssize_t n = readlink(link, above, sizeof above - 1); if (n < 0) return 0; above[n] = 0; }
    if (snprintf(whole, PATH_MAX, "%s/%s", above, path) >= PATH_MAX) return 0;
    return watched(whole);
}

static int opened(int (*call)(int, const char *, int, mode_t), int dir, const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || !resolved(dir, path, whole)) return call(dir, path, flags, mode);
    pthread_mutex_lock(&one_at_a_time);
    int was = !faccessat(AT_FDCWD, whole, F_OK, 0);
    int fd = call(dir, path, flags, mode), failed = errno;
    struct stat about;
    if (fd >= 0 && !fstat(fd, &about)) {
        if (!was) RECORD("create\t%s\t%lu\n", whole, about.st_ino);
        else if (flags & O_TRUNC) RECORD("truncate\t%lu\t0\n", about.st_ino);
    }
    pthread_mutex_unlock(&one_at_a_time);
    errno = failed;
    return fd;
}

static int call_open(int dir, const char *path, int flags, mode_t mode) {
    (void)dir;
    REAL(int, "open64", const char *, int, ...);
    return real(path, flags, mode);
}

static int call_openat(int dir, const char *path, int flags, mode_t mode) {
    REAL(int, "openat64", int, const char *, int, ...);
    return real(dir, path, flags, mode);
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, mode_t); va_end(rest); }
int open(const char *path, int flags, ...) { MODE return opened(call_open, AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(call_open, AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE return opened(call_openat, dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE return opened(call_openat, dir, path, flags, mode); }

static void wrote(int fd, const void *data, ssize_t size, off_t at) {
    struct stat about;
    char line[96];
    if (size <= 0 || fstat(fd, &about)) return;
    if (at < 0) at = lseek(fd, 0, SEEK_CUR) - size;
    int n = snprintf(line, sizeof line, "write\t%lu\t%ld\t%zd\n", about.st_ino, (long)at, size);
    record(line, (size_t)n, data, (size_t)size);
}

#define WATCHED_CALL(type, expression, then) char path[PATH_MAX]; int saved = errno; \
    if (!of_descriptor(fd, path)) { errno = saved; return expression; } \
    pthread_mutex_lock(&one_at_a_time); type done = expression; int failed = errno; then; \
    pthread_mutex_unlock(&one_at_a_time); errno = failed; return done;

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    WATCHED_CALL(ssize_t, real(fd, data, size), wrote(fd, data, done, -1))
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    WATCHED_CALL(ssize_t, real(fd, data, size, at), wrote(fd, data, done, at))
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t total = 0;
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    char path[PATH_MAX];
    if (!of_descriptor(fd, path)) return real(fd, parts, count);
    for (int i = 0; i < count; i++) {
        ssize_t n = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (n < 0) return total ? total : n;
        total += n;
        if ((size_t)n < parts[i].iov_len) break;
    }
    return total;
}
int ftruncate64(int fd, off_t size) {
    REAL(int, "ftruncate64", int, off_t);
    struct stat about;
    WATCHED_CALL(int, real(fd, size), if (!done && !fstat(fd, &about)) RECORD("truncate\t%lu\t%ld\n", about.st_ino, (long)size))
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static void synced(int fd, const char *path) {
    struct stat about;
    if (fstat(fd, &about)) return;
    if (S_ISDIR(about.st_mode)) RECORD("sync_folder\t%s\n", path);
    else RECORD("sync\t%lu\n", about.st_ino);
}
int fsync(int fd) {
    REAL(int, "fsync", int);
    WATCHED_CALL(int, real(fd), if (!done) synced(fd, path))
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    WATCHED_CALL(int, real(fd), if (!done) synced(fd, path))
}

#define NAMES(symbol, arguments, call, ...) \
    pthread_mutex_lock(&one_at_a_time); int done = call, failed = errno; \
    if (!done) { __VA_ARGS__; } pthread_mutex_unlock(&one_at_a_time); errno = failed; return done;

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    char a[PATH_MAX], b[PATH_MAX];
    int seen = resolved(from, old, a) | resolved(to, new, b);
    NAMES("renameat2", (), real(from, old, to, new, flags), if (seen) RECORD("rename\t%s\t%s\n", a, b))
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    char a[PATH_MAX], b[PATH_MAX];
    int seen = resolved(from, old, a) | resolved(to, new, b);
    NAMES("linkat", (), real(from, old, to, new, flags), if (seen) RECORD("link\t%s\t%s\n", a, b))
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    char a[PATH_MAX];
    int seen = resolved(dir, path, a);
    NAMES("mkdirat", (), real(dir, path, mode), if (seen) RECORD("mkdir\t%s\n", a))
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int dir, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char a[PATH_MAX];
    int seen = resolved(dir, path, a);
    NAMES("unlinkat", (), real(dir, path, flags), if (seen) RECORD("unlink\t%s\n", a))
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
