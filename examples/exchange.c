/* A file that changes as a whole, although it is written page by page:
 *
 *     cc -Wall -Werror -o exchange examples/exchange.c -Iinclude && ./exchange mnt/current mnt/next 100
 *
 * on a mount of a device with SHARE, or of ext4 with `--journal-mode journal`. Each round writes the next version to a second file, and
 * exchanges the contents of the two. Whatever a power cut does, the first file has one version in all of its pages;
 * `./exchange --check` looks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <flashweir.h>

#define PAGE 4096
#define PAGES 12
/* The last page is not a whole one. */
#define BYTES (PAGES * PAGE - 1000)

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return 1;
}

static int write_version(int fd, uint64_t version)
{
	static uint64_t words[BYTES / sizeof(uint64_t)];
	ssize_t written;
	size_t at;

	for (at = 0; at < sizeof words / sizeof words[0]; at++)
		words[at] = version;
	for (at = 0; at < sizeof words; at += (size_t)written) {
		written = pwrite(fd, (char *)words + at, sizeof words - at, (off_t)at);
		if (written <= 0)
			return -1;
	}
	return 0;
}

static int check(const char *path)
{
	static uint64_t words[BYTES / sizeof(uint64_t)];
	int fd = open(path, O_RDONLY);
	size_t at;

	if (fd < 0)
		return fail("open");
	if (pread(fd, words, sizeof words, 0) != sizeof words)
		return fail("read");
	printf("round %llu\n", (unsigned long long)words[0]);
	for (at = 0; at < sizeof words / sizeof words[0]; at++)
		if (words[at] != words[0]) {
			fprintf(stderr, "page %zu is of version %llu\n", at * sizeof words[0] / PAGE,
				(unsigned long long)words[at]);
			return 1;
		}
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t round, rounds;
	int current, next;

	if (argc == 4 && strcmp(argv[1], "--check") == 0)
		return check(argv[2]);
	if (argc != 4) {
		fprintf(stderr, "usage: exchange CURRENT NEXT ROUNDS, exchange --check CURRENT NEXT\n");
		return 2;
	}
	rounds = strtoull(argv[3], NULL, 10);
	current = open(argv[1], O_RDWR | O_CREAT, 0644);
	next = open(argv[2], O_RDWR | O_CREAT, 0644);
	if (current < 0 || next < 0)
		return fail("open");
	if (ftruncate(current, BYTES) != 0 || fsync(current) != 0)
		return fail("ftruncate");
	for (round = 1; round <= rounds; round++) {
		if (write_version(next, round) != 0)
			return fail("write");
		if (fexchange(current, 0, next, 0, BYTES, FLASHWEIR_EXCHANGE_DSYNC) != 0)
			return fail("fexchange");
	}
	return 0;
}
