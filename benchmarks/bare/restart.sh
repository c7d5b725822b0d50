#!/bin/bash
# By hand: two tasks, and both of them again as soon as one has ended badly.
# usage: restart.sh PIDS_FILE TF_CONFIG_0 TF_CONFIG_1 COMMAND...
pids=$1 first=$2 second=$3
shift 3
while :; do
    TF_CONFIG=$first "$@" &
    a=$!
    TF_CONFIG=$second "$@" &
    b=$!
    echo "$a $b" > "$pids.aside" && mv "$pids.aside" "$pids"
    wait -n $a $b && wait && exit 0
    kill -9 $a $b 2> /dev/null
    wait
done
