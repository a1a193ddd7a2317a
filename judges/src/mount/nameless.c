/* Files without a name, data and holes, on the file system of the directory that is given. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static void expect(const char *what, int is_so) {
    if (!is_so)
        fail(what);
}

static int linked(int file, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return linkat(AT_FDCWD, path, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

static void nameless(void) {
    struct stat stat;
    int dir = open(".", O_RDONLY), file = open(".", O_TMPFILE | O_RDWR, 0640);
    expect("O_TMPFILE", file >= 0);
    expect("a file without a name", write(file, "content", 7) == 7 && fsync(file) == 0);
    expect("its attributes", fstat(file, &stat) == 0 && stat.st_nlink == 0 && stat.st_size == 7);
    expect("its mode, less the mask", (stat.st_mode & 07777) == 0600);
    expect("its first name", linked(file, "linked") == 0 && fstat(file, &stat) == 0 && stat.st_nlink == 1);
    expect("a sync", fsync(file) == 0 && fsync(dir) == 0);
    int never = open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600);
    expect("O_TMPFILE with O_EXCL", never >= 0);
    expect("a name for what never gets one", linked(never, "never") == -1 && errno == ENOENT);
    expect("O_TMPFILE for reading", open(".", O_TMPFILE | O_RDONLY, 0600) == -1 && errno == EINVAL);
}

/* Nothing is synced; written parts are data nevertheless, also if a memory map wrote them. */
static void parts(void) {
    enum { PAGE = 4096, MAPPED = 512 << 10, LAST = 1 << 20 };
    static char page[PAGE];
    memset(page, 'x', PAGE);
    int file = open("parts", O_RDWR | O_CREAT, 0600);
    expect("a file with holes", file >= 0 && pwrite(file, page, PAGE, 0) == PAGE && pwrite(file, page, PAGE, LAST) == PAGE);
    expect("its first hole", lseek(file, 0, SEEK_HOLE) == PAGE);
    expect("its second data", lseek(file, PAGE, SEEK_DATA) == LAST);
    char *map = mmap(NULL, LAST, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    expect("a map", map != MAP_FAILED);
    map[MAPPED] = 'y';
    expect("what was written by a map", lseek(file, PAGE, SEEK_DATA) == MAPPED);
    expect("the hole behind it", lseek(file, MAPPED, SEEK_HOLE) == MAPPED + PAGE);
    expect("the hole at the end", lseek(file, LAST, SEEK_HOLE) == LAST + PAGE);
    expect("data behind the end", lseek(file, LAST + PAGE, SEEK_DATA) == -1 && errno == ENXIO);
    expect("the map", map[MAPPED] == 'y' && munmap(map, LAST) == 0);
}

int main(int argc, char **argv) {
    umask(077);
    expect("expected a directory", argc == 2 && chdir(argv[1]) == 0);
    nameless();
    parts();
    return 0;
}
