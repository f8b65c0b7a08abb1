//! Bash: what is written to the shell so that it runs one cell.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Makes an interactive shell a driver.
pub(super) const DRIVER: &str = include_str!("drivers/bash.sh");

/// Interactive, so that an interrupt drops the running line and not the shell; without anyone's start-up files.
pub(super) fn argv(program: String) -> Vec<String> {
    [&program, "--norc", "--noprofile", "--noediting", "-i"].map(str::to_owned).to_vec()
}

/// The line that moves a new shell to its directory. A missing one does not make it fail.
pub(super) fn change_dir(cwd: &str) -> String {
    format!("builtin cd -- {} 2>/dev/null\n", quoted(cwd))
}

/// The code that runs one cell.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Runs the cell whose code is next on descriptor 3.
    pub(super) run: String,
    /// Reports its exit status. The shell reads it only after the first has ended in whatever way. An interrupt that
    /// comes too late drops this line instead of the cell's code; so it may be written again, and then counts once.
    pub(super) end: String,
}

/// The lines that run the cell with this id and code.
pub(super) fn run(
    id: &str,
    code: &str,
    env: &BTreeMap<String, String>,
    base_env: &BTreeMap<String, String>,
) -> Lines {
    let mut first = format!("IFS= builtin read -r -d '' __pathbox_code <&3; __pathbox_begin {id}; ");
    let mut second = format!(
        "{{ __pathbox_status=$?; builtin set +xv; }} 2>/dev/null; if [[ $__pathbox_id == {id} ]]; then \
         __pathbox_settle; "
    );
    // Writing to a text cannot fail.
    for (name, value) in base_env.iter().filter(|(name, _)| is_name(name)) {
        let _ = write!(first, "builtin export {name}={}; ", quoted(value));
    }
    for (name, value) in env.iter().filter(|(name, _)| is_name(name)) {
        let _ = write!(
            first,
            "__pathbox_old_{name}=${{{name}-}} __pathbox_had_{name}=${{{name}+1}}; builtin export {name}={}; ",
            quoted(value)
        );
        let _ = write!(
            second,
            "if [[ $__pathbox_had_{name} ]]; then {name}=$__pathbox_old_{name}; else builtin unset {name}; fi; \
             builtin unset __pathbox_old_{name} __pathbox_had_{name}; "
        );
    }
    first.push_str("builtin . /dev/fd/7 7<<<\"$__pathbox_script\"\n");
    if code.contains("trap") {
        second
            .push_str("__pathbox_trapped; builtin eval \"${__pathbox_trap[2]}\" </dev/null 3>&- 8>&- 9>&-; ");
    }
    let _ = writeln!(second, "__pathbox_done {id} \"$__pathbox_status\"; fi");
    Lines { run: first, end: second }
}

/// The code as it is written to descriptor 3: ended by a NUL, so it cannot hold one.
pub(super) fn code(code: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = code.bytes().filter(|byte| *byte != 0).collect();
    bytes.push(0);
    bytes
}

/// Whether a shell variable can have this name.
fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `text` as one word that the shell takes as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_can_end_its_quotes() {
        assert_eq!(quoted("a'b\\n$(x)`y`"), r"'a'\''b\n$(x)`y`'");
        assert_eq!(
            change_dir("/tmp/a'; rm -rf /'"),
            "builtin cd -- '/tmp/a'\\''; rm -rf /'\\''' 2>/dev/null\n"
        );
    }

    #[test]
    fn a_name_that_cannot_be_a_shell_variable_is_left_out() {
        let env = BTreeMap::from([("A-B".to_owned(), "1".to_owned()), ("$(x)".to_owned(), "2".to_owned())]);
        let lines = run("0", "", &env, &env);
        for line in [lines.run, lines.end] {
            assert!(!line.contains("A-B") && !line.contains("$(x)"), "{line}");
        }
    }
}
