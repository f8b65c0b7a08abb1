//! JavaScript cells before they run: types are removed, and `import` is rewritten for V8's REPL mode.
//!
//! A parser for hostile text has no place in the host: a cell of a hundred thousand brackets would overflow its stack.
//! So this runs inside the cell's own sandbox, in a process that the agent forks for it ([`program`]); what comes
//! back is as hostile as any output of the sandbox.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::host::agent::{AgentHandle, Process, ProcessEvent, ProcessSpec, Stdin};

/// The name under which the agent knows [`program`]. No file can have it, because it is looked up first.
const PROGRAM: &str = "pathbox:cells";
/// Longest answer.
const ANSWER_MAX: usize = 64 << 20;
/// How long it may take.
const WAIT: Duration = Duration::from_secs(10);

/// The prepared cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A cell in JavaScript.
    JavaScript,
    /// A cell in TypeScript.
    TypeScript,
    /// A file that a cell imports, by its name: it stays a module, and what it imports is listed.
    Module(String),
}

/// A cell that is ready to run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// JavaScript.
    pub(super) code: String,
    /// For each of its lines, from 0, the line of the source that it comes from, from 1. Empty when they are the same.
    #[serde(default)]
    pub(super) lines: Vec<u32>,
    /// The import of a module, as it is written there.
    #[serde(default)]
    pub(super) imports: Vec<String>,
}

impl Prepared {
    fn as_it_is(code: &str) -> Self {
        Self { code: code.to_owned(), ..Self::default() }
    }
}

/// Source that cannot be made ready.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    /// The error.
    pub(super) message: String,
    /// Where, from 1; 0 when unknown.
    #[serde(default)]
    pub(super) line: usize,
    /// Where, from 1, in characters.
    #[serde(default)]
    pub(super) column: usize,
}

impl Refused {
    fn because(message: &str) -> Self {
        Self { message: message.to_owned(), line: 0, column: 0 }
    }
}

/// Makes a cell ready, inside the sandbox. JavaScript without modules, and JavaScript that does not parse, is ready as it
/// is: V8 gives the best error for it.
pub(super) async fn prepare(agent: &AgentHandle, code: &str, source: &Source) -> Result<Prepared, Refused> {
    let is_javascript = *source == Source::JavaScript;
    if is_javascript && !["import", "export", "</", "/>"].iter().any(|word| code.contains(word)) {
        return Ok(Prepared::as_it_is(code));
    }
    let kind = match source {
        Source::JavaScript => "javascript",
        Source::TypeScript => "typescript",
        Source::Module(name) => name,
    };
    let spec = ProcessSpec {
        argv: vec![PROGRAM.to_owned(), kind.to_owned()],
        stdin: Stdin::Pipe,
        ..ProcessSpec::default()
    };
    let process =
        agent.start(spec).await.map_err(|_| Refused::because("no process could be made to read the code"))?;
    let handle = process.handle.clone();
    let answer = tokio::time::timeout(WAIT, converse(process, code)).await;
    if answer.is_err() {
        // One that is gone needs none.
        let _ = handle.signal(libc::SIGKILL, true).await;
    }
    let answer =
        answer.ok().flatten().ok_or_else(|| Refused::because("the code is nested too deeply or too long"))?;
    let answer: Result<Prepared, Refused> =
        serde_json::from_slice(&answer).map_err(|_| Refused::because("the code could not be read"))?;
    match answer {
        Err(_) if is_javascript => Ok(Prepared::as_it_is(code)),
        answer => answer,
    }
}

/// Gives it the code; its whole answer, if it ended well.
async fn converse(mut process: Process, code: &str) -> Option<Vec<u8>> {
    let handle = process.handle.clone();
    let writing = async {
        // It may end before it has read all.
        let _ = handle.stdin(Bytes::copy_from_slice(code.as_bytes())).await;
        let _ = handle.close_stdin().await;
    };
    let reading = async {
        let mut answer = Vec::new();
        while let Some(event) = process.events.recv().await {
            match event {
                ProcessEvent::Stdout(bytes) if answer.len() + bytes.len() <= ANSWER_MAX => {
                    answer.extend_from_slice(&bytes);
                }
                ProcessEvent::Exited { code: Some(0), .. } => return Some(answer),
                ProcessEvent::Exited { .. } => return None,
                _ => {}
            }
        }
        None
    };
    tokio::join!(writing, reading).1
}

/// What the agent runs under a name instead of executing a file.
pub(crate) fn program(argv: &[String]) -> Option<fn(&[String]) -> i32> {
    (argv.first().map(String::as_str) == Some(PROGRAM)).then_some(run)
}

/// The program: source from descriptor 0, answer to descriptor 1.
fn run(argv: &[String]) -> i32 {
    use std::io::{Read, Write};
    let mut source = String::new();
    if std::io::stdin().read_to_string(&mut source).is_err() {
        return 1;
    }
    let kind = match argv.get(1).map(String::as_str) {
        Some("javascript") | None => Source::JavaScript,
        Some("typescript") => Source::TypeScript,
        Some(name) => Source::Module(name.to_owned()),
    };
    let answer = serde_json::to_vec(&convert(&source, &kind)).unwrap_or_default();
    let mut out = std::io::stdout();
    i32::from(out.write_all(&answer).and_then(|()| out.flush()).is_err())
}

#[cfg(not(feature = "typescript"))]
fn convert(_source: &str, _kind: &Source) -> Result<Prepared, Refused> {
    Err(Refused::because("this program was built without its feature `typescript`"))
}

#[cfg(feature = "typescript")]
use with_oxc::convert;

#[cfg(feature = "typescript")]
mod with_oxc {
    use std::path::{Path, PathBuf};

    use oxc::allocator::Allocator;
    use oxc::ast::ast::{
        ExportDefaultDeclarationKind, Expression, ImportAttributeKey, ImportDeclaration,
        ImportDeclarationSpecifier, ImportExpression, ImportMeta, Program, Statement,
    };
    use oxc::ast_visit::{Visit, walk};
    use oxc::codegen::{Codegen, CodegenOptions};
    use oxc::diagnostics::OxcDiagnostic;
    use oxc::parser::Parser;
    use oxc::semantic::SemanticBuilder;
    use oxc::span::{GetSpan, SourceType, Span};
    use oxc::transformer::{
        DecoratorOptions, HelperLoaderMode, HelperLoaderOptions, JsxOptions, JsxRuntime, TransformOptions,
        Transformer, TypeScriptOptions,
    };

    use super::{Prepared, Refused, Source};

    /// JavaScript that V8's REPL mode runs, for a cell; a module of JavaScript, for a file.
    pub(super) fn convert(source: &str, kind: &Source) -> Result<Prepared, Refused> {
        let mut prepared = match kind {
            Source::JavaScript => match without_modules(source) {
                Ok(code) => return Ok(Prepared { code, ..Prepared::default() }),
                Err(refused) if !has_elements(source) => return Err(refused),
                Err(refused) => without_types(source, SourceType::jsx()).map_err(|_| refused)?,
            },
            Source::TypeScript => match without_types(source, SourceType::ts()) {
                Err(refused) if has_elements(source) => {
                    without_types(source, SourceType::tsx()).map_err(|_| refused)?
                }
                made => made?,
            },
            Source::Module(name) => {
                let source_type = SourceType::from_path(name).unwrap_or(SourceType::ts());
                let mut prepared = without_types(source, source_type)?;
                prepared.imports = imports(&prepared.code);
                return Ok(prepared);
            }
        };
        // What came out of the code generator parses.
        prepared.code = without_modules(&prepared.code).unwrap_or(prepared.code);
        Ok(prepared)
    }

    /// Whether there may be elements of JSX.
    fn has_elements(source: &str) -> bool {
        source.contains("</") || source.contains("/>")
    }

    fn without_types(source: &str, source_type: SourceType) -> Result<Prepared, Refused> {
        let allocator = Allocator::default();
        let parsed = Parser::new(&allocator, source, source_type.with_module(true)).parse();
        refuse_if(&parsed.diagnostics, source)?;
        let mut program = parsed.program;
        let scoping = SemanticBuilder::new().with_enum_eval(true).build(&program).semantic.into_scoping();
        let options = TransformOptions {
            // The cell that uses an import may be a later one.
            typescript: TypeScriptOptions { only_remove_type_imports: true, ..TypeScriptOptions::default() },
            decorator: DecoratorOptions { legacy: true, ..DecoratorOptions::default() },
            // The driver has these names.
            jsx: JsxOptions {
                runtime: JsxRuntime::Classic,
                pragma: Some("__pathbox_jsx".to_owned()),
                pragma_frag: Some("__pathbox_fragment".to_owned()),
                display_name_plugin: false,
                ..JsxOptions::enable()
            },
            helper_loader: HelperLoaderOptions {
                mode: HelperLoaderMode::External,
                ..HelperLoaderOptions::default()
            },
            ..TransformOptions::default()
        };
        let path = Path::new("cell.ts");
        let done = Transformer::new(&allocator, path, &options).build_with_scoping(scoping, &mut program);
        refuse_if(&done.diagnostics, source)?;
        let options =
            CodegenOptions { source_map_path: Some(PathBuf::from("cell.ts")), ..CodegenOptions::default() };
        let made = Codegen::new().with_options(options).build(&program);
        let mut code = made.code;
        // A module without anything to import or export is marked as one; a cell is not.
        if let Some(rest) = code.strip_suffix("export {};\n") {
            code.truncate(rest.len());
        }
        let mut lines = vec![0; code.lines().count()];
        if let Some(map) = &made.map {
            for token in map.get_tokens() {
                if let Some(line) = lines.get_mut(token.get_dst_line() as usize)
                    && *line == 0
                {
                    *line = token.get_src_line() + 1;
                }
            }
        }
        // A comment that nothing points to belongs to the statement before it.
        let mut last = 1;
        for line in &mut lines {
            if *line == 0 {
                *line = last;
            }
            last = *line;
        }
        Ok(Prepared { code, lines, imports: Vec::new() })
    }

    /// The imports of a module.
    fn imports(code: &str) -> Vec<String> {
        struct Imports(Vec<String>);
        impl<'a> Visit<'a> for Imports {
            fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
                if let Expression::StringLiteral(text) = &import.source {
                    self.0.push(text.value.to_string());
                }
                walk::walk_import_expression(self, import);
            }
        }
        let allocator = Allocator::default();
        let parsed = Parser::new(&allocator, code, SourceType::mjs()).parse();
        let mut found = Imports(Vec::new());
        found.visit_program(&parsed.program);
        found.0.extend(parsed.program.body.iter().filter_map(|statement| match statement {
            Statement::ImportDeclaration(import) => Some(import.source.value.to_string()),
            Statement::ExportFromDeclaration(export) => Some(export.source.value.to_string()),
            Statement::ExportAllDeclaration(export) => Some(export.source.value.to_string()),
            _ => None,
        }));
        found.0
    }

    fn refuse_if<'a>(
        diagnostics: impl IntoIterator<Item = &'a OxcDiagnostic>,
        source: &str,
    ) -> Result<(), Refused> {
        let Some(first) = diagnostics.into_iter().next() else { return Ok(()) };
        let at = first.labels.first().map_or(0, |label| label.offset() as usize).min(source.len());
        let before = &source[..source.floor_char_boundary(at)];
        let line = before.rsplit('\n').next().unwrap_or_default();
        Err(Refused {
            message: first.message.to_string(),
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
        })
    }

    /// The same lines, with `import` and `export` replaced.
    fn without_modules(source: &str) -> Result<String, Refused> {
        let allocator = Allocator::default();
        let module = Parser::new(&allocator, source, SourceType::mjs()).parse();
        let parsed = if module.diagnostics.is_empty() {
            module
        } else {
            // Syntax that only a sloppy script may use.
            let script = Parser::new(&allocator, source, SourceType::script()).parse();
            refuse_if(&script.diagnostics, source)?;
            script
        };
        let mut edits = Edits { source, edits: Vec::new() };
        edits.visit_program(&parsed.program);
        edits.statements(&parsed.program);
        Ok(edits.apply())
    }

    struct Edits<'s> {
        source: &'s str,
        edits: Vec<(Span, String)>,
    }

    impl<'a> Visit<'a> for Edits<'_> {
        fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
            let keyword = Span::new(import.span.start, import.span.start + "import".len() as u32);
            self.edits.push((keyword, "__pathbox_import".to_owned()));
            walk::walk_import_expression(self, import);
        }

        fn visit_import_meta(&mut self, meta: &ImportMeta) {
            self.edits.push((meta.span, "__pathbox_meta".to_owned()));
        }
    }

    impl Edits<'_> {
        fn statements(&mut self, program: &Program<'_>) {
            for statement in &program.body {
                match statement {
                    Statement::ImportDeclaration(import) => self.replace(import.span, import_call(import)),
                    Statement::ExportDeclaration(export) => {
                        let before = Span::new(export.span.start, export.declaration.span().start);
                        self.replace(before, String::new());
                    }
                    Statement::ExportNamedDeclaration(export) => self.replace(export.span, ";".to_owned()),
                    Statement::ExportFromDeclaration(export) => {
                        let source = quoted(&export.source.value);
                        self.replace(export.span, format!("await __pathbox_import({source});"));
                    }
                    Statement::ExportDefaultDeclaration(export) => {
                        let unnamed = match &export.declaration {
                            ExportDefaultDeclarationKind::FunctionDeclaration(function) => {
                                function.id.is_none()
                            }
                            ExportDefaultDeclarationKind::ClassDeclaration(class) => class.id.is_none(),
                            _ => false,
                        };
                        let declared = export.declaration.span();
                        let before = Span::new(export.span.start, declared.start);
                        self.replace(before, if unnamed { "void " } else { "" }.to_owned());
                    }
                    Statement::ExportAllDeclaration(export) => {
                        let source = quoted(&export.source.value);
                        self.replace(export.span, format!("await __pathbox_import({source});"));
                    }
                    _ => {}
                }
            }
        }

        /// Replaces text by text with as many lines.
        fn replace(&mut self, span: Span, mut text: String) {
            let lines = self.source[span.start as usize..span.end as usize].matches('\n').count();
            text.extend(std::iter::repeat_n('\n', lines));
            self.edits.push((span, text));
        }

        fn apply(mut self) -> String {
            self.edits.sort_by_key(|(span, _)| span.start);
            let mut out = String::with_capacity(self.source.len() + 64 * self.edits.len());
            let mut at = 0;
            for (span, text) in &self.edits {
                let (start, end) = (span.start as usize, span.end as usize);
                if start < at {
                    continue; // inside of what was replaced
                }
                out.push_str(&self.source[at..start]);
                out.push_str(text);
                at = end;
            }
            out.push_str(&self.source[at..]);
            out
        }
    }

    /// `const {..} = await __pathbox_import('..');`
    fn import_call(import: &ImportDeclaration<'_>) -> String {
        let mut call = format!("await __pathbox_import({}", quoted(&import.source.value));
        if let Some(with) = &import.with_clause {
            let entries: Vec<String> = with
                .with_entries
                .iter()
                .map(|entry| {
                    let key = match &entry.key {
                        ImportAttributeKey::Identifier(name) => name.name.to_string(),
                        ImportAttributeKey::StringLiteral(text) => text.value.to_string(),
                    };
                    format!("{}: {}", quoted(&key), quoted(&entry.value.value))
                })
                .collect();
            call.push_str(&format!(", {{ with: {{ {} }} }}", entries.join(", ")));
        }
        call.push(')');
        let (mut names, mut namespace) = (Vec::new(), None);
        for specifier in import.specifiers.iter().flatten() {
            match specifier {
                ImportDeclarationSpecifier::ImportDefaultSpecifier(default) => {
                    names.push(format!("default: {}", default.local.name));
                }
                ImportDeclarationSpecifier::ImportSpecifier(one) => {
                    names.push(format!("{}: {}", quoted(&one.imported.name()), one.local.name));
                }
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(all) => namespace = Some(all.local.name),
            }
        }
        match (namespace, names.is_empty()) {
            (Some(all), true) => format!("const {all} = {call};"),
            (Some(all), false) => format!("const {all} = {call}, {{ {} }} = {all};", names.join(", ")),
            (None, false) => format!("const {{ {} }} = {call};", names.join(", ")),
            (None, true) => format!("{call};"),
        }
    }

    /// A JavaScript string.
    fn quoted(text: &str) -> String {
        // JSON text is JavaScript text.
        serde_json::to_string(text).unwrap_or_default()
    }
}

#[cfg(test)]
#[cfg(feature = "typescript")]
mod tests {
    use super::*;

    fn js(source: &str) -> String {
        convert(source, &Source::JavaScript).unwrap().code
    }

    fn ts(source: &str) -> String {
        convert(source, &Source::TypeScript).unwrap().code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn imports_become_awaited_calls_on_the_same_lines() {
        for (source, made) in [
            ("import fs from 'fs'; fs.x", "const { default: fs } = await __pathbox_import(\"fs\"); fs.x"),
            ("import * as p from 'path'", "const p = await __pathbox_import(\"path\");"),
            (
                "import {\n a as b,\n c\n} from 'x'\nb",
                "const { \"a\": b, \"c\": c } = await __pathbox_import(\"x\");\n\n\n\nb",
            ),
            ("import d, * as n from 'x'", "const n = await __pathbox_import(\"x\"), { default: d } = n;"),
            ("import 'side'", "await __pathbox_import(\"side\");"),
            (
                "import j from './a.json' with { type: 'json' }",
                "const { default: j } = await __pathbox_import(\"./a.json\", { with: { \"type\": \"json\" } });",
            ),
            (
                "f(import('x'), 'import(1)') // import(2)",
                "f(__pathbox_import('x'), 'import(1)') // import(2)",
            ),
            ("export const x = import('y')", "const x = __pathbox_import('y')"),
            ("export default class A {}", "class A {}"),
            ("export default a + 1", "a + 1"),
            ("export default function () {}", "void function () {}"),
            ("const a = 1; export { a }", "const a = 1; ;"),
            ("import x from \"a'\\n\"", "const { default: x } = await __pathbox_import(\"a'\\n\");"),
        ] {
            assert_eq!(js(source), made, "{source}");
        }
    }

    #[test]
    fn types_are_removed_and_code_stays() {
        for (source, made) in [
            ("interface P { a: number }; const p: P = { a: 1 }; p.a", "; const p = { a: 1 }; p.a;"),
            ("type T = 1; let x = 5 as T satisfies number; x!", "let x = 5; x;"),
            (
                "function f<T>(a?: T, ...b: T[]): a is T { return true } f<number>(1)",
                "function f(a, ...b) { return true; } f(1);",
            ),
            (
                "import type { A } from 'a'; import { B, type C } from 'b'",
                "const { \"B\": B } = await __pathbox_import(\"b\");",
            ),
            ("const r: number = await Promise.resolve(7); r", "const r = await Promise.resolve(7); r;"),
        ] {
            assert_eq!(ts(source), made, "{source}");
        }
        assert!(ts("enum E { A, B = 5 } E.B").contains("E[E[\"B\"] = 5] = \"B\""));
        assert!(ts("namespace N { export const x = 1 } N.x").contains("N.x"));
        assert!(ts("class C { constructor(private a: number) {} }").contains("this.a = a"));
    }

    #[test]
    fn elements_decorators_and_the_modules_own_data_have_a_form() {
        assert_eq!(ts("import.meta.url as string"), "__pathbox_meta.url;");
        assert_eq!(
            js("const a = <b c={1}>d</b>").trim(),
            "const a = /* @__PURE__ */ __pathbox_jsx(\"b\", { c: 1 }, \"d\");"
        );
        assert_eq!(js("1 </x/.lastIndex"), "1 </x/.lastIndex");
        assert!(ts("const a: any = <></>").contains("__pathbox_jsx(__pathbox_fragment"));
        assert!(ts("class A { @log f() {} }").contains("babelHelpers.decorate([log], A.prototype, \"f\""));
        let module =
            "import { a, type B } from './b'; export * from './c'; import('./d'); export const x: B = a";
        let made = convert(module, &Source::Module("a.ts".to_owned())).unwrap();
        assert_eq!(made.imports, ["./d", "./b", "./c"]);
        assert!(made.code.contains("export const x = a"), "{}", made.code);
    }

    #[test]
    fn lines_lead_back_to_the_source() {
        let prepared =
            convert("interface A {\n  a: 1\n}\n\nconst x: number = 1\n\n\nthrow x", &Source::TypeScript)
                .unwrap();
        assert_eq!(prepared.code, "const x = 1;\nthrow x;\n");
        assert_eq!(prepared.lines, [5, 8]);
    }

    #[test]
    fn a_syntax_error_is_refused_with_its_position() {
        let refused = convert("let ok = 1\nlet é: = 2", &Source::TypeScript).unwrap_err();
        assert_eq!((refused.line, refused.column > 1), (2, true), "{refused:?}");
        assert!(convert("import {", &Source::JavaScript).is_err());
        assert_eq!(js("with (Math) { x = import('y') }"), "with (Math) { x = __pathbox_import('y') }");
    }
}
