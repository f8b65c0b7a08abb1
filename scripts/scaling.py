#!/usr/bin/env python3
"""The cost of one call on a Postgres store, measured, and the first bottleneck as calls grow.

Needs a psql that reaches a superuser of a scratch cluster (PGHOST, PGUSER); makes a database `pathbox_scaling`, applies
migrations/postgres, runs acquire and record, and prints the tables of docs/scaling.md.
"""

import pathlib
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
CALLS = 2000
DATABASE = "pathbox_scaling"
# The capacity of a machine, for the table: change it here for yours.
COMMITS_PER_S = 5_000      # durable commits a second with group commit on a common SSD
WAL_MB_PER_S = 200         # sequential write that one disk keeps up
CORES = 16
RETENTION_DAYS = 30


def psql(sql: str, database: str = DATABASE) -> list[list[str]]:
    command = ["psql", "-qXAt", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", database]
    done = subprocess.run(command, input=sql, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [line.split("\t") for line in done.stdout.splitlines() if line]


def migrate() -> None:
    psql(f"drop database if exists {DATABASE}", "postgres")
    psql(f"create database {DATABASE}", "postgres")
    files = sorted((ROOT / "migrations" / "postgres").glob("*.sql"))
    head = """begin; create schema pathbox;
        create table pathbox.migrations (version bigint primary key, name text not null, checksum bytea not null,
            applied_at timestamptz not null default clock_timestamp(), serves_from text);"""
    psql(head + "\n".join(file.read_text() for file in files) + "\ncommit;")


def acquire(tenant: str, conversation: str, context: str, run: str) -> str:
    return (f"pathbox.acquire_v5('{tenant}','replica','','{conversation}','main','{run}'::uuid,'run_code','python',null::text,"
            "'c0de','key:x',null::text,null::text,null::text,90000::bigint,100000000,false,"
            f"'{context}',false,1000000,1000000,90000,60000,86400000,10000,1800000,null)")


RESULT = '{"v":1,"stdout":"' + "x" * 500 + '"}'


def record(tenant: str, context: str, run: str) -> str:
    return (f"pathbox.record_v3('{tenant}','{run}','{context}','completed',0,null,5,0,500,'{{}}','{RESULT}',true,null,"
            "1800000,null)")


def fill(first: int, last: int) -> None:
    """Live contexts of other tenants, ten each."""
    psql(f"""set session_replication_role = replica;
        insert into pathbox.execution_contexts (id, tenant_id, conversation_id, path_id, status, lease_owner,
            creator_execution, sandbox_id, ready_at, expires_at, due_at)
        select gen_random_uuid(), 'filler-' || n / 10, 'c' || n, 'main', 'ready', 'replica', gen_random_uuid(), gen_random_uuid()::text,
               clock_timestamp(), clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 hour'
          from generate_series({first}, {last}) n;
        analyze pathbox.execution_contexts; analyze pathbox.executions;""")


def measure(name: str, statements: list[str]) -> dict[str, float]:
    """Plays statements one by one, each its own transaction: microseconds, bytes of WAL, locks."""
    before = int(psql("select pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
    script = "select clock_timestamp() as began \\gset\n" + "".join(f"select outcome from {s};\n" if "acquire" in s
        else f"select {s};\n" for s in statements)
    script += f"select extract(epoch from clock_timestamp() - :'began') * 1e6 / {len(statements)};"
    micros = float(psql(script)[-1][0])
    after = int(psql("select pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
    return {"name": name, "us": micros, "wal": (after - before) / len(statements)}


def locks(statement: str) -> int:
    rows = psql(f"begin; select 1 from {statement}; select count(*) from pg_locks where pid = pg_backend_pid(); rollback;")
    return int(rows[-1][0])


def prepare(tenant: str, conversation: str = "c", database: str = DATABASE) -> str:
    """A ready context of this conversation: its id."""
    context, run = str(uuid.uuid4()), str(uuid.uuid4())
    found = psql(f"""select outcome, id from {acquire(tenant, conversation, context, run)};
        select (r.ctx).id from pathbox.ready_v1('{tenant}','{context}',1,'{run}','sb-{tenant}-{conversation}',null,
            'http://127.0.0.1:9',null,null,null,null,null,null,1800000) r where r is not null;
        select {record(tenant, context, run)};""", database)
    if found[0][0] == "ready":
        psql(f"select {record(tenant, found[0][1], run)};", database)
    return found[0][1]


def play(tenant: str) -> list[dict[str, float]]:
    context = prepare(tenant)
    runs = [str(uuid.uuid4()) for _ in range(CALLS)]
    pairs = [measure("acquire + record, warm", [s for run in runs for s in (
        acquire(tenant, "c", context, run), record(tenant, context, run))])]
    pairs[0]["us"] *= 2
    pairs[0]["wal"] *= 2
    limit = acquire(tenant, "never", str(uuid.uuid4()), str(uuid.uuid4())).replace("1000000,1000000", "1,1")
    pairs.append(measure("limit refused", [limit.replace("'never'", f"'never{n}'") for n in range(200)]))
    pairs.append(measure("reap, nothing due", ["pathbox.reap_v2(50,2592000000,60000,86400000)"] * 200))
    return pairs


# The parts of a warm call, and how each is removed from a copy of the database.
PARTS = {
    "without audit chain and counts of use": "drop trigger execution_ended on pathbox.executions",
    "without the guards of ended rows":
        "drop trigger guard_execution on pathbox.executions; drop trigger guard_context on pathbox.execution_contexts",
    "without row-level security":
        "alter table pathbox.executions disable row level security; alter table pathbox.execution_contexts disable row level security",
    "without three indexes (lists, retention)":
        "drop index pathbox.executions_by_tenant, pathbox.executions_by_context, pathbox.executions_finished",
}
PLAIN = """create schema usual;
    create table usual.contexts (key text primary key, status text not null, sandbox text not null,
        runs bigint not null default 0, expires_at timestamptz not null);
    create table usual.runs (id uuid primary key, key text not null, status text not null,
        started_at timestamptz not null, finished_at timestamptz);
    create index on usual.runs (key) where status = 'running';
    insert into usual.contexts values ('p', 'ready', 'sb', 0, now() + interval '1 day');"""
PLAIN_CALL = """begin;
    prepare u1(text) as select sandbox, runs, expires_at from usual.contexts where key = $1 for update;
    prepare u2(text) as select count(*) from usual.runs where key = $1 and status = 'running';
    prepare u3(uuid, text) as insert into usual.runs values ($1, $2, 'running', now(), null);
    prepare u4(text) as update usual.runs set status = 'done', finished_at = now() where key = $1 and status = 'running';
    prepare u5(text) as update usual.contexts set runs = runs + 1, expires_at = now() + interval '30 min' where key = $1;
    commit;"""


def processor(database: str, prepare: str, calls: list[str], each: int) -> str:
    """Least and median processor time of the server's process for a call, in series. The server is on this machine."""
    look = "\\! cut -d' ' -f1 /proc/$BACKEND/schedstat\n"
    size = len(calls) // 6
    series = [calls[n * size:(n + 1) * size] for n in range(6)]              # the first one warms up
    script = "select pg_backend_pid() as backend \\gset\n\\setenv BACKEND :backend\n" + prepare + look
    script += look.join("\\o /dev/null\n" + "".join(one) + "\\o\n" for one in series) + look
    seen = [int(row[0]) for row in psql(script, database)]
    spent = sorted((after - before) / 1000 / size / each for before, after in zip(seen[1:], seen[2:], strict=False))
    return f"{spent[0]:.0f}, {spent[len(spent) // 2]:.0f}"


def warm(database: str, width: int, count: int) -> str:
    """The same of warm calls that go together, or alone."""
    contexts = [prepare("cpu", f"c{n}", database) for n in range(width)]
    runs = [[str(uuid.uuid4()) for _ in contexts] for _ in range(count)]
    if width == 1:
        setup = f"""prepare a(uuid) as select * from {acquire("cpu", "c0", contexts[0], "00000000-0000-0000-0000-000000000000")
            .replace("'00000000-0000-0000-0000-000000000000'::uuid", "$1")};
            prepare r(uuid) as select {record("cpu", contexts[0], "x").replace("'x'", "$1", 1)};\n"""
        return processor(database, setup, [f"execute a('{one[0]}');execute r('{one[0]}');\n" for one in runs], 1)
    many = lambda value: f"array_fill({value}, array[{width}])"  # noqa: E731
    listed = ",".join(f"'{context}'" for context in contexts)
    names = ",".join(f"'c{n}'" for n in range(width))
    nothing = many("null::text")
    setup = f"""prepare a(uuid[]) as select * from pathbox.acquire_v4('cpu', 'replica', {many("''::text")}, array[{names}],
            {many("'main'::text")}, $1, {many("'run_code'::text")}, {many("'python'::text")}, {nothing}, {many("'c0de'::text")},
            {many("'key:x'::text")}, {nothing}, {nothing}, {nothing}, {many("90000::bigint")}, 100000000, false,
            gen_random_uuid(), false, 1000000, 1000000, 90000, 60000, 86400000, 10000, 1800000, null);
        prepare r(uuid[]) as select pathbox.records_v1('cpu', $1, array[{listed}]::uuid[], {many("'completed'::text")},
            {many("0")}, {nothing}, {many("5::bigint")}, {many("0::bigint")}, {many("500::bigint")}, {many("'{}'::text")},
            {many(f"'{RESULT}'::text")}, {many("true")}, {many("null::timestamptz")}, {many("null::timestamptz")},
            {many("1800000::bigint")});\n"""
    return processor(database, setup, [f"execute a('{{{','.join(one)}}}');execute r('{{{','.join(one)}}}');\n" for one in runs], width)


def promises() -> None:
    print("\n| | alone | eight together | 32 together |\n| --- | --- | --- | --- |")
    rows = {"now": "", **PARTS, "without all four": ";".join(PARTS.values())}
    copy = f"{DATABASE}_part"
    for name, change in rows.items():
        psql(f"drop database if exists {copy}; create database {copy} template {DATABASE}", "postgres")
        psql(change, copy)
        print(f"| {name} | {warm(copy, 1, CALLS)} | {warm(copy, 8, CALLS // 8)} | {warm(copy, 32, CALLS // 32)} |", flush=True)
    psql(PLAIN, copy)
    calls = [f"begin;execute u1('p');execute u2('p');execute u3('{uuid.uuid4()}','p');commit;\n"
             "begin;execute u4('p');execute u5('p');commit;\n" for _ in range(CALLS)]
    print(f"| baseline | {processor(copy, PLAIN_CALL, calls, 1)} | | |\n")
    psql(f"drop database {copy}", "postgres")


def main() -> None:
    migrate()
    figures = {}
    there = 0
    for contexts in (1_000, 100_000):
        fill(there + 1, contexts)
        there = contexts
        figures[contexts] = play(f"acme-{contexts}")
    print("| call | contexts | µs, one caller | WAL bytes |\n| --- | --- | --- | --- |")
    for contexts, rows in figures.items():
        for row in rows:
            print(f"| {row['name']} | {contexts:,} | {row['us']:,.0f} | {row['wal']:,.0f} |")
    context = prepare("locks")
    print(f"\nLocks held by one warm acquire: {locks(acquire('locks', 'c', context, str(uuid.uuid4())) + ' a')}")
    sizes = psql("""select pg_total_relation_size('pathbox.executions') / greatest(1, (select count(*) from pathbox.executions)),
        pg_total_relation_size('pathbox.execution_contexts') / greatest(1, (select count(*) from pathbox.execution_contexts))""")
    per_run, per_context = (int(cell) for cell in sizes[0])
    print(f"Bytes a row with its indexes: run {per_run:,}, context {per_context:,}\n")
    call = figures[100_000][0]
    print("| load | round trips/s | commits/s | database CPU, cores | WAL MB/s | rows/day | GB kept 30 days | first to break |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for load in (100, 1_000, 10_000):
        cores, wal = load * call["us"] / 1e6, load * call["wal"] / 1e6
        worn = {"durable commits": 2 * load / COMMITS_PER_S, "processor": cores / CORES, "WAL": wal / WAL_MB_PER_S,
                "disk (4 TB)": load * 86_400 * RETENTION_DAYS * per_run / 4e12}
        first, used = max(worn.items(), key=lambda item: item[1])
        print(f"| {load:,} calls/s | {2 * load:,} | {2 * load:,} | {cores:.1f} | {wal:.1f} | {load * 86_400:,} | "
              f"{load * 86_400 * RETENTION_DAYS * per_run / 1e9:,.0f} | {first} ({used:.0%}) |")
    print(f"\n10 million live contexts: {10_000_000 * per_context / 1e9:,.0f} GB of rows and indexes.")
    promises()
    psql(f"drop database {DATABASE}", "postgres")


if __name__ == "__main__":
    main()
