#!/bin/bash
# GNU parallel: each line of input is a job in a sandbox and a directory of its own.
#
#     printf '%s\n' one two three | examples/parallel_fleet.sh DIRECTORY 'wc -c < input > result'
#
# DIRECTORY/N is the workspace of job N and has its line as `input`; exit statuses and times are in DIRECTORY/joblog.
# A job sees its own directory and not those of the others, and reaches no host.
# Exit status: the number of failed jobs (parallel(1)).
set -eu
FLEET=$(realpath "$1")
COMMAND=$2
export FLEET COMMAND

job() { # NUMBER LINE
    mkdir "$FLEET/$1" && cd "$FLEET/$1" || exit
    printf '%s\n' "$2" >input
    exec membrane -q --no-presets --no-global-config -- /bin/sh -c "$COMMAND"
}
export -f job

# parallel quotes the line for the shell that calls the function.
PARALLEL_SHELL=/bin/bash exec parallel --will-cite --jobs 4 --joblog "$FLEET/joblog" job '{#}' '{}'
