//! What a run finds before its own code begins: `data`, and the way to the tools.
//!
//! A cell of ours runs first, with fixed code: a caller's value goes in as a file and is read there, so it is never text in
//! code, and the run's secret is in no source that a traceback shows.

use crate::domain::{CodeRequest, ExecutionId, Language, OutputChunk};
use crate::e2b::{Deadlines, E2bError};

use super::acquire::Held;
use super::attempts::Fault;
use super::interpret::Run;
use super::tools::ToolRun;

const PYTHON: &str = r#"def __pathbox_begin(tools, library, data, relative):
    import os, sys
    if tools:
        os.environ["PATHBOX_TOOLS"] = tools
        for name, part in (("PATH", os.path.join(library, "bin")), ("PYTHONPATH", library)):
            parts = [old for old in os.environ.get(name, "").split(":") if old and "/.pathbox/tools-" not in old]
            os.environ[name] = ":".join([part] + parts)
        sys.path[:] = [library] + [old for old in sys.path if "/.pathbox/tools-" not in old]
        sys.path_importer_cache.pop(library, None)
        module = sys.modules.get("tools")
        if hasattr(module, "ToolError"):
            module._begin()
    if data:
        import json
        path = data if os.path.exists(data) else os.path.join(os.path.expanduser("~"), relative)
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        os.unlink(path)
        return value
"#;

const JAVASCRIPT: &str = r#"{
  const begin = (tools, library) => {
    process.env.PATHBOX_TOOLS = tools;
    for (const [name, part] of [['PATH', library + '/bin'], ['PYTHONPATH', library]]) {
      const parts = (process.env[name] ?? '').split(':').filter((old) => old && !old.includes('/.pathbox/tools-'));
      process.env[name] = [part, ...parts].join(':');
    }
    for (const module of Object.values(require.cache ?? {})) if (module?.exports?.ToolError) module.exports.begin();
  };
"#;

/// Makes ready what the run's code may use.
pub(super) async fn bind(
    held: &Held,
    request: &CodeRequest,
    execution: ExecutionId,
    tools: Option<&ToolRun>,
    deadlines: Deadlines,
) -> Result<(), Fault> {
    let data = request.inputs.data.as_deref();
    if tools.is_none() && data.is_none() {
        return Ok(());
    }
    let relative = format!(".pathbox/data-{execution}.json");
    let mut path = String::new();
    if let Some(data) = data {
        let files = held.client.files(&held.access);
        let written = files.write(&relative, data.to_owned()).await;
        path = written.map_err(|error| Fault::of(held, error))?.path;
    }
    let (variable, library) = tools.map_or(("", ""), |tools| (tools.variable.as_str(), tools.library()));
    let code = code(request.language, [variable, library, &path, &relative]);
    let run = Run::start(&held.client, &held.access, request.language, &code, deadlines);
    let mut run = run.await.map_err(|error| Fault::of(held, error))?;
    loop {
        match run.next().await {
            Ok(Some(OutputChunk::Error(error))) => {
                tracing::warn!(name = %error.name, "data or tools could not be bound");
                let what = "`data` or the tools could not be bound in the interpreter";
                return Err(Fault::Sandbox(E2bError::Command {
                    what,
                    exit_code: 1,
                    message: Default::default(),
                }));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(()),
            Err(error) => return Err(Fault::of(held, error)),
        }
    }
}

fn code(language: Language, [variable, library, path, relative]: [&str; 4]) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    match language {
        Language::Python => {
            let bind = if path.is_empty() { "" } else { "data = " };
            format!(
                "{PYTHON}{bind}__pathbox_begin({}, {}, {}, {})\ndel __pathbox_begin\n",
                text(variable),
                text(library),
                text(path),
                text(relative)
            )
        }
        Language::Javascript | Language::Typescript => {
            let begin = match variable {
                "" => String::new(),
                _ => format!("{JAVASCRIPT}  begin({}, {});\n}}\n", text(variable), text(library)),
            };
            let data = match path {
                "" => String::new(),
                _ => format!(
                    "let data = ((fs, path, relative) => {{ const at = fs.existsSync(path) ? path : require('os').homedir() + '/' + relative; \
                     const value = JSON.parse(fs.readFileSync(at, 'utf8')); fs.unlinkSync(at); return value; }})(require('fs'), {}, {});\n",
                    text(path),
                    text(relative)
                ),
            };
            format!("{begin}{data}undefined;\n")
        }
        Language::Bash => {
            let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
            let mut code = String::new();
            if !variable.is_empty() {
                let (variable, binary) = (quoted(variable), quoted(&format!("{library}/bin")));
                code.push_str(&format!(
                    "export PATHBOX_TOOLS={variable} PYTHONPATH={}\ncase \":$PATH:\" in *:{binary}:*) ;; *) export PATH={binary}:\"$PATH\" ;; esac\n",
                    quoted(library)
                ));
            }
            if !path.is_empty() {
                let (path, relative) = (quoted(path), quoted(relative));
                code.push_str(&format!(
                    "if [ -e {path} ]; then data=$(cat {path}); rm -f {path}; else data=$(cat ~/{relative}); rm -f ~/{relative}; fi\n"
                ));
            }
            code
        }
    }
}
