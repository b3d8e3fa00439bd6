/* sched_yield() as a short sleep, for LD_PRELOAD.
 *
 * Engines and their transfer library wait in loops of sched_yield(). With more such loops than cores,
 * a fair scheduler (Linux 6.6 and later) lets each of them use up its share doing nothing, and the one
 * task with work to do can wait for many seconds. A sleep really gives the core away. 50 us is far
 * below what a step of the model takes, so nobody notices the wait. */
#include <time.h>

int sched_yield(void)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = 50 * 1000 };
    nanosleep(&pause, 0);
    return 0;
}
