/* A small key-value store, to be checked by `weir check` (docs/check.md). It keeps everything in one file and replaces
 * the file with each change, which is safe if the new file is synced before it gets its name and the directory after.
 *
 *   cc -Wall -o kv examples/check/kv.c
 *   weir check --verify './kv check {}' -- ./kv fill {} 12
 *
 * As it is, it forgets to sync the new file. `cc -DSYNC …` makes it right. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEYS_MAX = 1000, VALUE_MAX = 200 };

struct store {
    int count;
    char values[KEYS_MAX][VALUE_MAX];
};

static struct store store;

static void die(const char *what) {
    fprintf(stderr, "%s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

/* The file has a line for each key, and then one that says how many there are. */
static void load(void) {
    char line[VALUE_MAX];
    int said = -1;
    FILE *file = fopen("store", "r");
    if (!file) {
        if (errno != ENOENT)
            die("store");
        return;
    }
    errno = 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "end %d", &said) == 1)
            break;
        if (store.count == KEYS_MAX || !strchr(line, '\n'))
            die("the store is torn");
        strcpy(store.values[store.count++], line);
    }
    if (said != store.count)
        die("the store is torn");
    fclose(file);
}

static void save(void) {
    FILE *file = fopen("store.new", "w");
    if (!file)
        die("store.new");
    for (int key = 0; key < store.count; key++)
        fputs(store.values[key], file);
    fprintf(file, "end %d\n", store.count);
    if (fflush(file))
        die("store.new");
#ifdef SYNC
    if (fsync(fileno(file)))
        die("store.new");
#endif
    if (fclose(file) || rename("store.new", "store"))
        die("store");
    int directory = open(".", O_RDONLY);
    if (directory < 0 || fsync(directory) || close(directory))
        die(".");
}

static void fill(int keys) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    load();
    for (int key = store.count; key < keys && key < KEYS_MAX; key++) {
        sprintf(store.values[store.count++], "value of key %d, and some more to fill the line\n", key);
        save();
        /* Whoever reads this may rely on it. */
        printf("stored %d\n", key);
    }
}

/* Everything that was promised has to be there. */
static void check(void) {
    char line[VALUE_MAX];
    int key;
    load();
    while (fgets(line, sizeof line, stdin))
        if (sscanf(line, "stored %d", &key) == 1 && key >= store.count) {
            fprintf(stderr, "key %d was stored and is missing\n", key);
            exit(1);
        }
}

int main(int argc, char **argv) {
    if (argc < 3 || chdir(argv[2])) {
        fprintf(stderr, "usage: kv fill DIR KEYS | kv check DIR\n");
        return 2;
    }
    if (!strcmp(argv[1], "fill"))
        fill(argc > 3 ? atoi(argv[3]) : 12);
    else
        check();
    return 0;
}
