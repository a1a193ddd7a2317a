/* Two files that change together, and never by half:
 *
 *     cc -Wall -Werror -o transfer examples/transfer.c -Iinclude && ./transfer mnt/left mnt/right 100
 *
 * on ext4 that is mounted with `weir mount ... --journal-mode journal`. Each round writes its number to both files, to some
 * places of each; one call makes them durable, and then the round is printed. Whatever a power cut does, both have the same number
 * everywhere; `./transfer --check` looks. Every third round is written and then forgotten. `weir check` cuts the power everywhere:
 *
 *     weir check --format ext4-sdj --setup './transfer {}/left {}/right 1' --verify './transfer --check {}/left {}/right' \
 *         -- ./transfer {}/left {}/right 7
 *
 * With `-DAPART` each file is synced by itself, and what that breaks is found.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <flashweir.h>

#define PLACES 8
#define DISTANCE 9000

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return 1;
}

/* The last round that was printed, if `weir check` says what was printed. */
static uint64_t promised(void)
{
	const char *path = getenv("WEIR_PRINTED");
	FILE *printed = path ? fopen(path, "r") : NULL;
	unsigned long long round = 0;

	if (printed) {
		while (fscanf(printed, "round %llu\n", &round) == 1)
			;
		fclose(printed);
	}
	return round;
}

static int check(const char *left, const char *right)
{
	int fds[2] = {open(left, O_RDONLY), open(right, O_RDONLY)};
	uint64_t numbers[2][PLACES] = {{0}};
	int file, place;

	if (fds[0] < 0 || fds[1] < 0)
		return fail("open");
	for (file = 0; file < 2; file++)
		for (place = 0; place < PLACES; place++)
			if (pread(fds[file], &numbers[file][place], sizeof(uint64_t), (off_t)place * DISTANCE) < 0)
				return fail("read");
	printf("round %llu\n", (unsigned long long)numbers[0][0]);
	fflush(stdout);
	if (numbers[0][0] < promised()) {
		fprintf(stderr, "round %llu was printed and is gone\n", (unsigned long long)promised());
		return 1;
	}
	for (file = 0; file < 2; file++)
		for (place = 0; place < PLACES; place++)
			if (numbers[file][place] != numbers[0][0]) {
				fprintf(stderr, "place %d of file %d is of round %llu\n", place, file,
					(unsigned long long)numbers[file][place]);
				return 1;
			}
	return 0;
}

static int commit(const int *fds)
{
#ifdef APART
	return fsync(fds[0]) != 0 ? -1 : fsync(fds[1]);
#else
	return fsyncv(fds, 2);
#endif
}

int main(int argc, char **argv)
{
	uint64_t round, rounds, number;
	int fds[2], file, place;

	if (argc == 4 && strcmp(argv[1], "--check") == 0)
		return check(argv[2], argv[3]);
	if (argc != 4) {
		fprintf(stderr, "usage: transfer LEFT RIGHT ROUNDS, transfer --check LEFT RIGHT\n");
		return 2;
	}
	rounds = strtoull(argv[3], NULL, 10);
	for (file = 0; file < 2; file++) {
		fds[file] = open(argv[1 + file], O_RDWR | O_CREAT, 0644);
		if (fds[file] < 0)
			return fail("open");
		if (fatomic(fds[file]) != 0)
			return fail("fatomic");
	}
	for (round = 1; round <= rounds; round++) {
		for (file = 0; file < 2; file++)
			for (place = 0; place < PLACES; place++)
				if (pwrite(fds[file], &round, sizeof round, (off_t)place * DISTANCE) != sizeof round)
					return fail("write");
		if (round % 3 != 0) {
			if (commit(fds) != 0)
				return fail("commit");
			printf("round %llu\n", (unsigned long long)round);
			fflush(stdout);
			continue;
		}
		for (file = 0; file < 2; file++) {
			if (fabort(fds[file]) != 0)
				return fail("fabort");
			if (pread(fds[file], &number, sizeof number, 0) != sizeof number)
				return fail("read");
			if (number != round - 1) {
				fprintf(stderr, "after abort of round %llu: %llu\n", (unsigned long long)round,
					(unsigned long long)number);
				return 1;
			}
		}
	}
	return 0;
}
