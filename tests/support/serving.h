/* serving.h - what every engine keeps, however it had to start: a short set of promises that is run
 * under each fallback.
 *
 *     forbid_io_uring();                                  // or another condition
 *     failed = serving_run("no io_uring", arguments, "io_uring cannot be used");
 *
 * Tokens that do not depend on what runs beside them, cancelling, a client that does not read, one
 * that dies, both sides asleep, many clients. At the end everything has come back: clients, KV
 * blocks; no wake was lost.
 */
#ifndef LLMD_TESTS_SERVING_H
#define LLMD_TESTS_SERVING_H

/* Starts an engine on the tiny model with more arguments (NULL-terminated), runs the set as a cmocka
 * group of that name, stops the engine. What the engine printed has the sentence `says` once; with
 * NULL there is no warning. Returns how many tests failed. */
int serving_run(const char *name, const char *const *arguments, const char *says);

#endif
