# The Bash driver: one interactive shell on pipes, so that an interrupt drops the running line and keeps the rest.
#
# Frames and marks are those of python.py; the payload's length is written by hand because all frames here have a
# fixed length. For each cell the host writes the code and a NUL to descriptor 3, and a line that calls the
# functions below to descriptor 0. Standard error is standard output, as at E2B.
set +H +m +o history
PS1= PS2= PROMPT_COMMAND=
unset HISTFILE
exec 2>&1 8>&1
# id
__pathbox_begin() {
  builtin printf '\x1e%s:00000000\x1e' "$1" >&8
  builtin printf '\x40\0\0\0{"t":"begin","id":"%s","k":0     }' "$1" >&3
}
# id, exit status
__pathbox_done() {
  builtin printf '\x1e%s:00000001\x1e' "$1" >&8
  builtin printf '\x48\0\0\0{"t":"done","id":"%s","k":1,"value":"%3d"}' "$1" "$2" >&3
}
builtin printf '\x14\0\0\0{"t":"ready"       }' >&3
