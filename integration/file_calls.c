/* LD_PRELOAD: before each call that changes a file below FILE_CALLS_ROOT, copies ROOT to FILE_CALLS_STATES/<pid>-<number>.
 * Each copy is what a kill -9 at that call leaves. Does nothing unless FILE_CALLS_STATES exists. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int busy;
static int number;
static char watched[65536];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int below(const char *path) {
    const char *root = getenv("FILE_CALLS_ROOT");
    return root && path && !busy && strncmp(path, root, strlen(root)) == 0;
}

static void copy(const char *from, const char *to) {
    struct stat found;
    if (lstat(from, &found)) return;
    if (S_ISDIR(found.st_mode)) {
        REAL(mkdir)(to, 0755);
        DIR *folder = opendir(from);
        if (!folder) return;
        struct dirent *entry;
        while ((entry = readdir(folder))) {
            if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
            char source[4096], target[4096];
            snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
            snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
            copy(source, target);
        }
        closedir(folder);
        return;
    }
    int in = REAL(open)(from, O_RDONLY), out = REAL(open)(to, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    char bytes[65536];
    ssize_t count;
    while (in >= 0 && out >= 0 && (count = read(in, bytes, sizeof bytes)) > 0)
        if (REAL(write)(out, bytes, count) != count) break;
    if (in >= 0) REAL(close)(in);
    if (out >= 0) REAL(close)(out);
}

static void keep(void) {
    const char *states = getenv("FILE_CALLS_STATES");
    if (!states || access(states, F_OK)) return;
    char target[4096];
    pthread_mutex_lock(&lock);
    busy = 1;
    snprintf(target, sizeof target, "%s/%d-%05d", states, getpid(), ++number);
    copy(getenv("FILE_CALLS_ROOT"), target);
    busy = 0;
    pthread_mutex_unlock(&lock);
}

static int opened(int fd, const char *path, int flags) {
    if (fd >= 0 && fd < (int)sizeof watched) watched[fd] = below(path) && (flags & O_ACCMODE) != O_RDONLY;
    return fd;
}

#define OPEN(name)                                                                \
    int name(const char *path, int flags, ...) {                                  \
        va_list more;                                                             \
        va_start(more, flags);                                                    \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                             \
        if (below(path) && (flags & O_CREAT)) keep();                             \
        return opened(REAL(name)(path, flags, mode), path, flags);                \
    }
OPEN(open)
OPEN(open64)

#define CHANGE(name, arguments, pass, path)             \
    int name arguments {                                \
        if (below(path)) keep();                        \
        return REAL(name) pass;                         \
    }
CHANGE(rename, (const char *from, const char *to), (from, to), to)
CHANGE(link, (const char *from, const char *to), (from, to), to)
CHANGE(unlink, (const char *path), (path), path)
CHANGE(rmdir, (const char *path), (path), path)
CHANGE(remove, (const char *path), (path), path)
CHANGE(mkdir, (const char *path, mode_t mode), (path, mode), path)

ssize_t write(int fd, const void *bytes, size_t count) {
    if (!busy && fd >= 0 && fd < (int)sizeof watched && watched[fd]) keep();
    return REAL(write)(fd, bytes, count);
}

int close(int fd) {
    if (!busy && fd >= 0 && fd < (int)sizeof watched && watched[fd]) {
        watched[fd] = 0;
        keep();
    }
    return REAL(close)(fd);
}
