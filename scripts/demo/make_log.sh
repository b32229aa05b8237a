#!/bin/sh
# The log that the demo's agent looks into: 420 lines of a made-up import job, the same on every
# machine. Worker 2 waits longer and longer for a connection and times out 14 times.
exec awk '
function draw(n) { seed = (seed * 69069 + 1) % 2147483648; return int(seed / 65536) % n }
function line(level, text) {
    printf "2026-11-29T%02d:%02d:%02d.%03dZ %-5s worker-%d job=%04d %s\n",
        1 + int(s / 3600), int(s / 60) % 60, s % 60, draw(1000), level, worker, job, text
}
BEGIN {
    seed = 20261129
    split("load parse check store index", stage, " ")
    for (i = 1; i <= 420; i++) {
        s += 1 + draw(9)
        worker = 1 + draw(4)
        job = 4000 + int(i / 3)
        wait = 2 + draw(20) + (worker == 2 ? int(i * i / 220) : 0)
        if (worker == 2 && i > 120 && i % 4 == 0 && timeouts < 14) {
            timeouts++
            line("ERROR", "stage=store connection pool: no connection within 500 ms, in use 8 of 8")
        } else if (wait > 250)
            line("WARN", "stage=store waited " wait " ms for a connection, in use 8 of 8")
        else
            line("INFO", "stage=" stage[1 + draw(5)] " rows=" 100 + draw(900) " wait_ms=" wait)
    }
    if (timeouts != 14) { print "make_log: " timeouts " timeouts" > "/dev/stderr"; exit 1 }
}'
