/* A log and a page, in this order on the disk, without a wait for either:
 *
 *     cc -Wall -Werror -o barrier examples/barrier.c -Iinclude && ./barrier mnt/log mnt/page 100
 *
 * on a file system that is mounted with `weir mount ... --commit dual`. In each round the log gets a record, then the page
 * its number. Whatever a power cut does, the page never has a number that the log has not; `./barrier --check` looks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <flashweir.h>

static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	return 1;
}

static int check(const char *log, const char *page)
{
	int log_fd = open(log, O_RDONLY), page_fd = open(page, O_RDONLY);
	uint64_t records = 0, record = 0, number = 0;

	if (log_fd < 0 || page_fd < 0)
		return fail("open");
	while (read(log_fd, &record, sizeof record) == sizeof record && record == records + 1)
		records = record;
	if (pread(page_fd, &number, sizeof number, 0) < 0)
		return fail("read");
	printf("the log has %llu records, the page %llu\n", (unsigned long long)records, (unsigned long long)number);
	return number > records;
}

int main(int argc, char **argv)
{
	uint64_t round, rounds;
	int log, page;

	if (argc == 4 && strcmp(argv[1], "--check") == 0)
		return check(argv[2], argv[3]);
	if (argc != 4) {
		fprintf(stderr, "usage: barrier LOG PAGE ROUNDS, barrier --check LOG PAGE\n");
		return 2;
	}
	log = open(argv[1], O_WRONLY | O_CREAT, 0644);
	page = open(argv[2], O_WRONLY | O_CREAT, 0644);
	rounds = strtoull(argv[3], NULL, 10);
	if (log < 0 || page < 0)
		return fail("open");
	for (round = 1; round <= rounds; round++) {
		if (pwrite(log, &round, sizeof round, (round - 1) * sizeof round) != sizeof round)
			return fail("write of the log");
		if (fdatabarrier(log) != 0)
			return fail("fdatabarrier");
		if (pwrite(page, &round, sizeof round, 0) != sizeof round)
			return fail("write of the page");
		if (fbarrier(page) != 0)
			return fail("fbarrier");
	}
	return 0;
}
