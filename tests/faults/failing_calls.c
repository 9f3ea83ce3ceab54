/* Makes the n-th call of the file system fail, for files below one directory: LD_PRELOAD this.

   Calls are counted that open, look at, read, write, sync, rename, list or make what is below it.
   From the armed one on, `times` of them fail with `error`; -1 kills the process instead.

   Apart from that, what lies below FAULTS_MOUNT (of the environment, so that children inherit it)
   behaves like a mount that is no disk, as Google Drive's in Colab is: locks fail with the number
   in FAULTS_MOUNT_ERROR, so do links, directories are not synced (EINVAL), and a rename removes
   what it replaces first. Each such answer appends a letter to the file FAULTS_MOUNT_LOG. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
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

/* The mount. */

static int is_on_mount(const char *path) {
  const char *mount = getenv("FAULTS_MOUNT");
  return mount && path && strncmp(path, mount, strlen(mount)) == 0;
}

/* The path of an open file, however it was opened. */
static const char *path_of(int file, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = 0;
  return path;
}

static int is_open_on_mount(int file) {
  char path[4096];
  int before = errno, is_there = is_on_mount(path_of(file, path, sizeof path));
  errno = before;
  return is_there;
}

/* Fails with a number, and says what did. */
static int answers(char what, int number) {
  const char *log = getenv("FAULTS_MOUNT_LOG");
  int file = log ? open(log, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
  if (file >= 0 && write(file, &what, 1) == 1) close(file);
  errno = number;
  return -1;
}

static int knows_none(char what) {
  const char *number = getenv("FAULTS_MOUNT_ERROR");
  return answers(what, number ? atoi(number) : ENOSYS);
}

static int is_directory_on_mount(int file) {
  struct stat found;
  return is_open_on_mount(file) && fstat(file, &found) == 0 && S_ISDIR(found.st_mode);
}

#define SYNC(name) \
  int name(int file) { \
    REAL(name); \
    if (watched(file) && fails()) return -1; \
    return is_directory_on_mount(file) ? answers('s', EINVAL) : real(file); \
  }
SYNC(fsync)
SYNC(fdatasync)

int flock(int file, int how) {
  REAL(flock);
  return is_open_on_mount(file) ? knows_none('f') : real(file, how);
}

static int is_of_locks(int command) {
  return command == F_SETLK || command == F_SETLKW || command == F_GETLK ||
         command == F_OFD_SETLK || command == F_OFD_SETLKW || command == F_OFD_GETLK;
}

#define CONTROL(name) \
  int name(int file, int command, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, command); \
    void *argument = va_arg(rest, void *); \
    va_end(rest); \
    if (is_of_locks(command) && is_open_on_mount(file)) return knows_none('c'); \
    return real(file, command, argument); \
  }
CONTROL(fcntl)
CONTROL(fcntl64)

int link(const char *path, const char *to) {
  REAL(link);
  return is_on_mount(to) ? knows_none('l') : real(path, to);
}
int linkat(int from, const char *path, int at, const char *to, int flags) {
  REAL(linkat);
  return is_on_mount(to) ? knows_none('l') : real(from, path, at, to, flags);
}
int symlink(const char *path, const char *to) {
  REAL(symlink);
  return is_on_mount(to) ? knows_none('l') : real(path, to);
}

/* For a moment there is neither the old file nor the new one. */
static void remove_replaced(const char *to) {
  struct stat found;
  if (!is_on_mount(to) || lstat(to, &found) || S_ISDIR(found.st_mode)) return;
  unlink(to);
  answers('r', 0);
  usleep(20000);
}

#define OF_PATH(type, failure, name, parameters, arguments, path) \
  type name parameters { \
    REAL(name); \
    if (is_below(path) && fails()) return failure; \
    return real arguments; \
  }
OF_PATH(int, -1, mkdir, (const char *path, mode_t mode), (path, mode), path)

#define RENAME(name, parameters, arguments) \
  int name parameters { \
    REAL(name); \
    if (is_below(path) && fails()) return -1; \
    remove_replaced(to); \
    return real arguments; \
  }
RENAME(rename, (const char *path, const char *to), (path, to))
RENAME(renameat, (int a, const char *path, int b, const char *to), (a, path, b, to))
RENAME(renameat2, (int a, const char *path, int b, const char *to, unsigned how),
       (a, path, b, to, how))

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
