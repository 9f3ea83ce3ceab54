/* Makes the n-th call of the file system fail, for files below one directory: LD_PRELOAD this.

   Calls are counted that open, look at, read, write, sync, rename, list or make what is below it.
   From the armed one on, `times` of them fail with `error`; -1 kills the process instead. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_FILES 65536
static char directory[4096];
static atomic_long counted, first, last;
static atomic_int error;
static atomic_char is_watched[MOST_FILES];

void faults_arm(const char *below, long nth, long times, int number) {
  strncpy(directory, below, sizeof directory - 1);
  error = number;
  first = nth;
  last = times < 0 ? -1 : nth + times;
  counted = 0;
}

long faults_counted(void) { return counted; }

static int is_below(const char *path) {
  return directory[0] && path && strncmp(path, directory, strlen(directory)) == 0;
}

/* Whether this call fails; errno is set then. */
static int fails(void) {
  long number = atomic_fetch_add(&counted, 1) + 1;
  if (first <= 0 || number < first || (last >= 0 && number >= last)) return 0;
  if (error < 0) kill(getpid(), SIGKILL);
  errno = error;
  return 1;
}

static int watched(int file) { return file >= 0 && file < MOST_FILES && is_watched[file]; }

static int opened(int file, const char *path) {
  if (file >= 0 && file < MOST_FILES) is_watched[file] = is_below(path);
  return file;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name, before, path, ...) \
  if (is_below(path) && fails()) return -1; \
  va_list rest; \
  va_start(rest, flags); \
  mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
  va_end(rest); \
  return opened(real(__VA_ARGS__, mode), path)

int open(const char *path, int flags, ...) { REAL(open); OPEN(open, , path, path, flags); }
int open64(const char *path, int flags, ...) { REAL(open64); OPEN(open64, , path, path, flags); }
int openat(int at, const char *path, int flags, ...) {
  REAL(openat);
  OPEN(openat, at, path, at, path, flags);
}
int openat64(int at, const char *path, int flags, ...) {
  REAL(openat64);
  OPEN(openat64, at, path, at, path, flags);
}
int close(int file) {
  REAL(close);
  if (file >= 0 && file < MOST_FILES) is_watched[file] = 0;
  return real(file);
}

#define OF_FILE(type, name, parameters, arguments) \
  type name parameters { \
    REAL(name); \
    if (watched(file) && fails()) return -1; \
    return real arguments; \
  }
OF_FILE(ssize_t, read, (int file, void *to, size_t size), (file, to, size))
OF_FILE(ssize_t, pread, (int file, void *to, size_t size, off_t at), (file, to, size, at))
OF_FILE(ssize_t, pread64, (int file, void *to, size_t size, off64_t at), (file, to, size, at))
OF_FILE(ssize_t, preadv, (int file, const struct iovec *to, int n, off_t at), (file, to, n, at))
OF_FILE(ssize_t, write, (int file, const void *from, size_t size), (file, from, size))
OF_FILE(ssize_t, pwrite, (int file, const void *from, size_t size, off_t at), (file, from, size, at))
OF_FILE(ssize_t, writev, (int file, const struct iovec *from, int n), (file, from, n))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))

#define OF_PATH(type, failure, name, parameters, arguments, path) \
  type name parameters { \
    REAL(name); \
    if (is_below(path) && fails()) return failure; \
    return real arguments; \
  }
OF_PATH(int, -1, mkdir, (const char *path, mode_t mode), (path, mode), path)
OF_PATH(int, -1, rename, (const char *path, const char *to), (path, to), path)
OF_PATH(int, -1, renameat, (int a, const char *path, int b, const char *to), (a, path, b, to), path)
OF_PATH(int, -1, unlink, (const char *path), (path), path)
OF_PATH(int, -1, rmdir, (const char *path), (path), path)
OF_PATH(DIR *, NULL, opendir, (const char *path), (path), path)
/* Programs built for large files ask for the names with 64. */
#define LOOK(name, type) \
  OF_PATH(int, -1, name, (const char *path, struct type *to), (path, to), path)
#define LOOK_AT(name, type) \
  OF_PATH(int, -1, name, (int at, const char *path, struct type *to, int how), \
          (at, path, to, how), path)
LOOK(stat, stat)
LOOK(stat64, stat64)
LOOK(lstat, stat)
LOOK(lstat64, stat64)
LOOK_AT(fstatat, stat)
LOOK_AT(fstatat64, stat64)
