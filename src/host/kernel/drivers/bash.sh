# The Bash driver: one interactive shell on pipes, so that an interrupt drops the running line and keeps the rest.
#
# Frames and marks are those of python.py; the payload's length is written by hand because all frames here have a
# fixed length. For each cell the host writes the code and a NUL to descriptor 3, and two lines that call the functions
# below to descriptor 0. The code is run by a sourced script, because the shell then does not talk of jobs and of its end.
#
# What ends a script (`exit`, a failure under `set -e`) ends the cell and not the shell: the shell interrupts itself,
# which drops everything that runs and keeps variables, functions and the directory.
set +H +m +o history
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE
exec 8>&1 9>&2
__pathbox_script='builtin eval "$__pathbox_code" </dev/null 3>&- 7<&- 8>&- 9>&-'
# id
__pathbox_begin() {
  builtin printf '\x1e%s:00000000\x1e' "$1" >&8
  builtin printf '\x1e%s:00000000\x1e' "$1" >&9
  builtin printf '\x40\0\0\0{"t":"begin","id":"%s","k":0     }' "$1" >&3
  __pathbox_id=$1 __pathbox_left=
  builtin set -E
  builtin trap __pathbox_failed ERR
}
# id, exit status
__pathbox_done() {
  __pathbox_id=
  builtin printf '\x1e%s:00000001\x1e' "$1" >&8
  builtin printf '\x1e%s:00000001\x1e' "$1" >&9
  builtin printf '\x48\0\0\0{"t":"done","id":"%s","k":1,"value":"%3d"}' "$1" "$2" >&3
}
# exit status
__pathbox_leave() {
  __pathbox_left=$1
  exec 6>&2 2>/dev/null
  builtin trap - INT
  builtin kill -INT $$
}
__pathbox_failed() {
  __pathbox_left=$?
  [[ $- == *e* && $BASHPID == $$ && $__pathbox_id ]] && __pathbox_leave $__pathbox_left
  __pathbox_left=
}
exit() {
  __pathbox_status=$?
  [[ $BASHPID == $$ && $__pathbox_id ]] && __pathbox_leave $((${1-$__pathbox_status} & 255))
  builtin exit "${1-$__pathbox_status}"
}
__pathbox_note() {
  builtin printf 'note: %s. It is open again\n' "$1" >&9
}
# After a cell: its exit status, options and descriptors are the shell's own again.
__pathbox_settle() {
  builtin set +efux +o pipefail
  if [[ $__pathbox_left ]]; then
    __pathbox_status=$__pathbox_left __pathbox_left=
    exec 2>&6 6>&-
  fi
  [[ -e /dev/fd/1 ]] || { exec 1>&8; __pathbox_note 'stdout was closed: what was printed after that is lost'; }
  [[ -e /dev/fd/2 ]] || { exec 2>&9; __pathbox_note 'stderr was closed: what was printed after that is lost'; }
}
# After a cell that spoke of traps: what it wants to be done at its end.
__pathbox_trapped() {
  builtin eval "__pathbox_trap=($(builtin trap -p EXIT))"
  builtin trap - EXIT
}
builtin printf '\x14\0\0\0{"t":"ready"       }' >&3
