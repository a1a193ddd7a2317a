/* SQLite's batch-atomic writes on a directory: transactions that change many pages, without a rollback journal.
 *
 * batch DB ROUNDS: in each transaction all rows get the number of the round. Prints the last one and how many journals were
 * made on the way. batch --check DB: whether all rows have the same number, and the database is good.
 */
#define _GNU_SOURCE
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "sqlite3.h"

#define ROWS 300

static sqlite3 *db;

static int run(const char *sql)
{
	char *why = NULL;

	if (sqlite3_exec(db, sql, NULL, NULL, &why) == SQLITE_OK)
		return 0;
	fprintf(stderr, "%s: %s\n", sql, why ? why : sqlite3_errmsg(db));
	return 1;
}

static long number(const char *sql)
{
	sqlite3_stmt *statement;
	long found = -1;

	if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) == SQLITE_OK && sqlite3_step(statement) == SQLITE_ROW)
		found = (long)sqlite3_column_int64(statement, 0);
	sqlite3_finalize(statement);
	return found;
}

static int check(void)
{
	if (number("SELECT count(DISTINCT round) FROM t") != 1 || number("SELECT count(*) FROM t") != ROWS) {
		fprintf(stderr, "rows are of %ld rounds\n", number("SELECT count(DISTINCT round) FROM t"));
		return 1;
	}
	if (number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'") != 1) {
		fprintf(stderr, "integrity check\n");
		return 1;
	}
	printf("round %ld\n", number("SELECT max(round) FROM t"));
	return 0;
}

/* Number of files that were made with names that end like this. */
static int made(int watch, const char *end)
{
	char bytes[65536];
	int count = 0;
	ssize_t length;

	while ((length = read(watch, bytes, sizeof bytes)) > 0) {
		char *at;

		for (at = bytes; at < bytes + length; at += sizeof(struct inotify_event) + ((struct inotify_event *)at)->len) {
			struct inotify_event *event = (struct inotify_event *)at;
			size_t size = strlen(event->len ? event->name : "");

			count += size >= strlen(end) && strcmp(event->name + size - strlen(end), end) == 0;
		}
	}
	return count;
}

int main(int argc, char **argv)
{
	int checks = argc == 3 && strcmp(argv[1], "--check") == 0, watch, journals = 0;
	const char *path = argv[argc > 1 && !checks ? 1 : argc - 1];
	char sql[200], *directory = dirname(strdup(path));
	long round, rounds;

	if (argc != 3 || sqlite3_open(path, &db) != SQLITE_OK)
		return 2;
	if (checks)
		return check();
	rounds = atol(argv[2]);
	if (run("PRAGMA synchronous = FULL") || run("PRAGMA journal_mode = DELETE"))
		return 1;
	if (run("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, round INTEGER, filling BLOB)"))
		return 1;
	snprintf(sql, sizeof sql,
		 "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
		 "INSERT OR IGNORE INTO t SELECT i, 0, randomblob(500) FROM n",
		 ROWS);
	if (run(sql))
		return 1;
	watch = inotify_init1(IN_NONBLOCK);
	if (inotify_add_watch(watch, directory, IN_CREATE) < 0)
		return 1;
	for (round = 1; round <= rounds; round++) {
		snprintf(sql, sizeof sql, "UPDATE t SET round = (SELECT max(round) FROM t) + 1");
		if (run(sql))
			return 1;
		/* Two events that say the same become one if nobody reads the first. */
		journals += made(watch, "-journal");
		if (round % 100 == 0 || round == rounds)
			printf("%ld transactions, %d journals\n", round, journals);
		fflush(stdout);
	}
	return 0;
}
