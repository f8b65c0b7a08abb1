//! JavaScript and TypeScript in a sandbox: REPL semantics, modules, errors, interrupts.

use futures::StreamExt;
use pathbox::wire::interpreter::{Event, ExecuteRequest};

use crate::kernel_support::{Bench, Told};

impl Bench {
    async fn js(&self, code: &str) -> Told {
        self.run(code, "javascript").await
    }

    async fn ts(&self, code: &str) -> Told {
        self.run(code, "typescript").await
    }
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn the_last_value_is_the_result_and_names_may_be_declared_again() {
    let bench = Bench::new().await;
    let told = bench.js("console.log('hi'); console.error('err'); 1+1").await;
    assert_eq!((&*told.stdout, &*told.stderr, told.value()), ("hi\n", "err\n", "2"));
    assert_eq!(bench.js("let q = 5; const c = 1; class A {}").await.output(), "");
    assert_eq!(bench.js("let q = 6; const c = 2; class A {}; q + c").await.value(), "8");
    assert_eq!(bench.js("const r = await Promise.resolve(7); r").await.value(), "7");
    for (code, text) in [
        ("({a:1,b:[1,2]})", "{ a: 1, b: [ 1, 2 ] }"),
        ("'日本 🎉'", "日本 🎉"),
        ("10n ** 30n", "1000000000000000000000000000000n"),
        ("[NaN, -0, null]", "[ NaN, -0, null ]"),
        ("new Map([[1, new A()]])", "Map(1) { 1 => A {} }"),
        ("null", "null"),
        ("-0", "-0"),
        ("'\\ud800'", "\\uD800"),
    ] {
        assert_eq!(bench.js(code).await.value().to_lowercase(), text.to_lowercase(), "{code}");
    }
    for silent in ["undefined", "", "let x = 1", "// nothing"] {
        assert_eq!(bench.js(silent).await.output(), "", "{silent}");
    }
    let told = bench.js("display({a: 1}); console.log('between'); display.html('<b>'); 3").await;
    assert_eq!(told.kinds, ["count", "result", "stdout", "result", "result", "end"]);
    assert_eq!(told.results[1].html.as_deref(), Some("<b>"));
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn modules_are_imported_in_every_way() {
    let bench = Bench::new().await;
    assert_eq!(bench.js("import fs from 'fs'; fs.existsSync('/')").await.value(), "true");
    assert_eq!(
        bench
            .js("import { join as j } from 'node:path'\nimport * as os from 'os'\nj('a', typeof os.cpus)")
            .await
            .value(),
        "a/function"
    );
    assert_eq!(bench.js("fs === (await import('fs')).default").await.value(), "true");
    assert_eq!(bench.js("require('path').basename('/x/y')").await.value(), "y");
    bench.js("fs.writeFileSync('m.mjs', 'export const a = 1; export default 2'); fs.writeFileSync('d.json', '{\"k\": 3}')").await;
    assert_eq!(bench.js("import two, { a } from './m.mjs'; a + two").await.value(), "3");
    assert_eq!(bench.js("export const e = 4; export default e").await.value(), "4");
    assert_eq!(bench.js("e").await.value(), "4");
    let told = bench.js("import x from 'no-such-package'").await;
    assert!(told.error().value.contains("no-such-package"), "{told:?}");
    assert!(bench.js("import {").await.error().name == "SyntaxError");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn an_error_has_the_users_lines() {
    let bench = Bench::new().await;
    let told = bench.js("let q=5; throw new Error('boom')").await;
    let error = told.error();
    assert_eq!((&*error.name, &*error.value), ("Error", "boom"));
    assert_eq!(
        error.traceback,
        "cell-1.js:1\nlet q=5; throw new Error('boom')\n               ^\n\nError: boom\n    at cell-1.js:1:16"
    );
    let told = bench.js("function f() {\n  null.x\n}\nf()").await;
    assert!(told.error().traceback.contains("at f (cell-2.js:2:8)\n    at cell-2.js:4:1"), "{told:?}");
    assert!(!told.error().traceback.contains("pathbox"));
    for (code, name, value) in [
        ("throw 5", "Error", "5"),
        ("throw {code: 1}", "Error", "{ code: 1 }"),
        ("await Promise.reject(new TypeError('late'))", "TypeError", "late"),
        ("let = 3 4", "SyntaxError", "Unexpected number"),
        ("class E extends Error { name = 'Mine' }; throw new E('m')", "Mine", "m"),
        ("throw Object.create(null)", "Error", "[Object: null prototype] {}"),
        ("throw { get stack() { throw 1 } }", "Error", "<no description>"),
        ("throw { stack: 's', message: 'm', get code() { throw 1 } }", "Object", "m"),
    ] {
        let told = bench.js(code).await;
        assert_eq!((&*told.error().name, &*told.error().value), (name, value), "{code}");
    }
    // The cause of an error, the parts of one that has several, and an error's own description.
    for (code, reason) in [
        ("throw new Error('outer', { cause: new TypeError('inner') })", "[cause]: TypeError: inner"),
        ("throw new AggregateError([new Error('first'), new Error('second')], 'all')", "Error: second"),
        ("require('fs').readFileSync('/nowhere')", "syscall: 'open'"),
    ] {
        let traceback = bench.js(code).await.error().traceback.clone();
        assert!(traceback.contains(reason) && !traceback.contains("pathbox"), "{code}: {traceback}");
    }
    // An error that is shown or printed ends with the cell, too.
    let told = bench.js("function g() { return new Error('v') }; const v = g(); console.log(v); v").await;
    let cell = "Error: v\n    at g (cell-14.js:1:23)\n    at cell-14.js:1:51";
    assert_eq!((told.stdout.trim_end(), told.value()), (cell, cell));
    assert_eq!(bench.js("q").await.value(), "5");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn an_interrupt_keeps_the_variables() {
    let bench = Bench::new().await;
    bench.js("let kept = 'kept'").await;
    for busy in [
        "while (true) {}",
        "await new Promise(() => {})",
        "/(a+)+b/.test('a'.repeat(60))",
        "for (;;) console.log('x'.repeat(1000))",
        "require('child_process').execSync('sleep 1000')",
    ] {
        let request = ExecuteRequest::in_language(format!("console.log('on'); {busy}"), "javascript");
        let mut stream = bench.kernels.execute(request).unwrap();
        while !matches!(stream.next().await, Some(Event::Stdout(_)) | None) {}
        drop(stream);
        let told = bench.js("kept").await;
        assert!(told.errors.is_empty(), "{busy}: {told:?}");
        assert_eq!(told.value(), "kept", "{busy}");
    }
    // Never back in the event loop: deaf, so it is killed and replaced.
    let request =
        ExecuteRequest::in_language("await null; console.log('on'); for (;;) await null", "javascript");
    let mut stream = bench.kernels.execute(request).unwrap();
    while !matches!(stream.next().await, Some(Event::Stdout(_)) | None) {}
    drop(stream);
    let told = bench.js("typeof kept").await;
    assert_eq!((told.value(), told.count), ("undefined", 1));
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn exit_and_death_are_distinguished() {
    let bench = Bench::new().await;
    bench.js("let kept = 1").await;
    for (code, status) in [
        ("console.log('on'); process.exit(0); console.log('no')", 0),
        ("console.log('on'); process.exit(3)", 3),
        ("console.log('on'); setTimeout(() => process.exit(4), 10); await new Promise(() => {})", 4),
        ("console.log('on'); process.exitCode = 5; null", 5),
        ("console.log('on'); try { process.exit(6) } catch {}", 6),
        ("(async () => { console.log('on'); process.exit(7) })().catch(console.log)", 7),
    ] {
        let told = bench.js(code).await;
        let ended = told.errors.first().map_or("0", |error| &*error.value);
        assert_eq!((&*told.stdout, ended), ("on\n", &*status.to_string()), "{code}: {told:?}");
        assert_eq!(bench.js("kept").await.value(), "1");
    }
    for (kill, why) in [("process.abort()", "SIGABRT"), ("process.kill(process.pid, 'SIGKILL')", "SIGKILL")] {
        let told = bench.js(&format!("console.log('bye'); {kill}; await new Promise(() => {{}})")).await;
        assert_eq!(told.stdout, "bye\n");
        assert!(told.error().traceback.contains(why), "{told:?}");
        let told = bench.js("typeof kept").await;
        assert_eq!((told.value(), told.count), ("undefined", 1));
    }
    let told = bench.js("process.stdout.write('x'.repeat(3_000_000)); 1").await;
    assert_eq!((told.stdout.len(), told.value()), (3_000_000, "1"));
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn env_vars_are_data_and_for_one_execution() {
    let bench = Bench::new().await;
    let told = bench.run_with_env("[process.env.FOO]", "js", &[("FOO", "it's \"\n`${x}\\n")]).await;
    assert_eq!(
        told.value(),
        "[ `it's \"\\n\\`${x}\\\\n` ]".replace("`it's \"\\n\\`${x}\\\\n`", "'it\\'s \"\\n`${x}\\\\n'")
    );
    assert_eq!(bench.js("process.env.FOO").await.output(), "");
    bench.kernels.set_env([("BASE".to_owned(), "b".to_owned())].into()).unwrap();
    assert_eq!(bench.js("process.env.BASE").await.value(), "b");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn typescript_loses_its_types_and_keeps_its_lines() {
    let bench = Bench::new().await;
    assert_eq!(bench.ts("interface P{a:number}; const p: P={a:1}; p.a").await.value(), "1");
    assert_eq!(
        bench.ts("enum E { A = 1, B }\nfunction f<T>(x: T): T { return x }\nf<number>(E.B)").await.value(),
        "2"
    );
    assert_eq!(bench.ts("class C { constructor(private readonly v: number) {} get() { return this.v } }\nnew C(p.a).get()").await.value(), "1");
    assert_eq!(
        bench.ts("namespace N { export const x: number = await_ ?? 3; var await_: any }\nN.x").await.value(),
        "3"
    );
    assert_eq!(bench.ts("import { join } from 'path'; import type { X } from 'nowhere'").await.output(), "");
    assert_eq!(bench.ts("join('a', 'b') satisfies string").await.value(), "a/b");
    assert_eq!(bench.ts("const r: number = await Promise.resolve(7); r as any").await.value(), "7");
    let told = bench.ts("interface Q {\n  a: number\n}\n\nfunction g(q: Q): never {\n  throw new Error('deep')\n}\ng({ a: 1 })").await;
    let traceback = &told.error().traceback;
    assert!(traceback.contains("at g (cell-8.ts:6)\n    at cell-8.ts:8"), "{traceback}");
    assert!(traceback.contains("  throw new Error('deep')\n"), "{traceback}");
    let told = bench.ts("let ok = 1\nlet é: = 2").await;
    assert_eq!(told.error().name, "SyntaxError");
    assert!(told.error().traceback.starts_with("cell-9.ts:2\nlet é: = 2\n"), "{told:?}");
    // A context of its own.
    assert_eq!(bench.js("typeof p").await.value(), "undefined");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn code_that_overflows_a_parser_affects_no_other_context() {
    let bench = Bench::new().await;
    for deep in [
        "(".repeat(200_000),
        "[".repeat(200_000),
        "!".repeat(200_000) + "1",
        "1".to_owned() + &"+1".repeat(200_000),
        "a=>".repeat(200_000) + "1",
        "if(1)".repeat(100_000) + ";",
    ] {
        let told = bench.ts(&deep).await;
        assert!(told.complete && told.errors.len() + told.results.len() <= 1, "{:.20} {told:?}", deep);
        let told = bench.js(&format!("import('fs');{deep}")).await;
        assert!(told.complete, "{:.20} {told:?}", deep);
    }
    assert_eq!(bench.ts("1 as number").await.value(), "1");
    assert_eq!(bench.python("1").await.value(), "1");
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn work_that_was_begun_is_awaited_and_what_lasts_is_named() {
    let bench = Bench::new().await;
    for (code, stdout) in [
        (
            "async function main() { await new Promise((r) => setTimeout(r, 20)); console.log('done') }\nmain()",
            "done\n",
        ),
        ("setTimeout(() => console.log('later'), 50); console.log('now')", "now\nlater\n"),
        (
            "let n = 0; const t = setInterval(() => { console.log(++n); if (n == 2) clearInterval(t) }, 5)",
            "1\n2\n",
        ),
        ("require('fs').readdir('/', (e, list) => console.log(list.length > 3))", "true\n"),
        ("Promise.resolve(1).then(console.log)", "1\n"),
        ("queueMicrotask(() => console.log('micro'))", "micro\n"),
    ] {
        let told = bench.js(code).await;
        assert_eq!((&*told.stdout, &*told.stderr, told.errors.len()), (stdout, "", 0), "{code}: {told:?}");
    }
    assert_eq!(bench.js("(async () => 42)()").await.value(), "42");
    assert_eq!(bench.js("new Promise(() => {})").await.value(), "Promise { <pending> }");
    for (code, name, value) in [
        ("Promise.reject(new TypeError('nobody awaits')); 1", "TypeError", "nobody awaits"),
        ("(async () => { throw new RangeError('late') })()", "RangeError", "late"),
        ("setTimeout(() => { throw new Error('in a timer') }, 5)", "Error", "in a timer"),
        ("await new Promise(() => {})", "Error", "the cell awaits a promise that nothing is left to settle"),
    ] {
        let told = bench.js(code).await;
        assert_eq!((&*told.error().name, &*told.error().value), (name, value), "{code}");
        assert!(!told.error().traceback.contains("node:internal"), "{told:?}");
    }
    let told = bench
        .js("const s = require('http').createServer((q, r) => r.end('served')).listen(8099); null")
        .await;
    assert_eq!(told.stderr, "note: still running after this cell: 1 server\n");
    assert_eq!(bench.js("await (await fetch('http://127.0.0.1:8099')).text()").await.value(), "served");
    bench.js("s.close(); s.closeAllConnections()").await;
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn values_are_shown_by_their_size_and_as_json_where_that_is_exact() {
    let bench = Bench::new().await;
    let told = bench.js("({ z: { b: { c: { d: { e: [1, 'x', null] } } } }, a: 0.1 })").await;
    assert!(told.value().contains("e: [ 1, 'x', null ]"), "{told:?}");
    let json = r#"{"z":{"b":{"c":{"d":{"e":[1,"x",null]}}}},"a":0.1}"#;
    assert_eq!(told.results[0].json.as_ref().unwrap().to_string(), json);
    let told = bench.js("Array.from({ length: 500 }, (_, i) => i)").await;
    assert!(told.value().contains("499") && !told.value().contains("more items"));
    for code in [
        "[NaN]",
        "[-0]",
        "[1,,2]",
        "({ a: undefined })",
        "[10n]",
        "[new Date(0)]",
        "new Map([[1, 2]])",
        "({ get a() { return 1 } })",
        "['\\ud800']",
        "({ toJSON() { return 1 } })",
        "[() => 1]",
        "({ [Symbol('s')]: 1 })",
        "new (class A { x = 1 })()",
    ] {
        let told = bench.js(code).await;
        assert_eq!(told.results[0].json, None, "{code}: {told:?}");
    }
    assert_eq!(bench.js("Symbol('s')").await.value(), "Symbol(s)");
    assert_eq!(bench.js("throw Symbol('s')").await.error().value, "Symbol(s)");
    let told = bench.js("'a\\nb'").await;
    assert_eq!((told.value(), told.results[0].json.clone()), ("a\\nb", Some("a\nb".into())));
    let told = bench.js("const big = { rows: Array.from({ length: 100000 }, (_, i) => ({ i })) }; big").await;
    assert!(told.value().contains("more items") && told.value().len() < 100_000, "{}", told.value().len());
}

#[tokio::test]
#[ignore = "needs node: scripts/test installs it"]
async fn typescript_as_projects_have_it() {
    let bench = Bench::new().await;
    assert_eq!(
        bench.ts("[import.meta.dirname, import.meta.url.startsWith('file:///home/user/')]").await.value(),
        "[ '/home/user', true ]"
    );
    let told = bench.ts("function log(target: any, key: string, d: PropertyDescriptor) { const f = d.value; d.value = function (...a: any[]) { console.log('call', key); return f.apply(this, a) } }\nfunction sealed(c: Function) { console.log('class', c.name) }\n@sealed class A { @log add(a: number, b: number) { return a + b } }\nnew A().add(1, 2)").await;
    assert_eq!((&*told.stdout, told.value()), ("class A\ncall add\n", "3"));
    let told = bench.ts("function twice(value: any, context: ClassMethodDecoratorContext) { return function (this: any, ...a: any[]) { return [context.name, 2 * value.apply(this, a)] } }\nclass B { @twice two() { return 2 } }\nnew B().two()").await;
    assert_eq!(told.value(), "[ 'two', 4 ]");
    let told = bench
        .ts("const Item = (p: { n: number }) => <li>{p.n}</li>;\n(<ul a='b'><Item n={1} /></ul> as any).type")
        .await;
    assert_eq!(told.value(), "ul");
    assert_eq!(bench.js("(<a href='/x'>y</a>).props.href").await.value(), "/x");
    bench.ts("require('fs').mkdirSync('lib'); require('fs').writeFileSync('lib/util.ts', 'export enum E { A = 1, B }\\nexport type T = number; export const two: T = E.B'); require('fs').writeFileSync('lib.ts', \"import { two } from './lib/util'\\nexport function three(): number { return two + 1 }\"); null").await;
    assert_eq!(bench.ts("const lib = await import('./lib.ts'); lib.three()").await.value(), "3");
    assert_eq!(bench.ts("import { three } from './lib'; three()").await.value(), "3");
    assert_eq!(bench.js("(await import('./lib.ts')).three()").await.value(), "3");
    bench.ts("require('fs').writeFileSync('lib/util.ts', 'export const two = 20'); null").await;
    assert_eq!(
        bench.ts("(await import('./lib.ts')).three()").await.value(),
        "21",
        "what is written anew is read anew"
    );
    bench.ts("require('fs').writeFileSync('bad.ts', 'export const a: = 1'); null").await;
    let told = bench.ts("await import('./bad.ts')").await;
    assert_eq!(told.error().name, "SyntaxError");
    assert!(told.error().value.ends_with("(/home/user/bad.ts:1)"), "{told:?}");
}
