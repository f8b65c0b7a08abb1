#!/usr/bin/env python3
"""What one call costs a Postgres store, measured, and what breaks first as calls grow.

Needs a psql that reaches a superuser of a scratch cluster (PGHOST, PGUSER); makes a database `pathbox_scaling`, applies
migrations/postgres, plays acquire and record, and prints the table of docs/scaling.md.
"""

import pathlib
import subprocess
import sys
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
CALLS = 2000
DATABASE = "pathbox_scaling"
# What a machine gives, for the table: changed here when yours gives something else.
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
    return (f"pathbox.acquire_v4('{tenant}','replica',array[''],array['{conversation}'],array['main'],array['{run}'::uuid],"
            "array['run_code'],array['python'],array[null::text],array['c0de'],array['key:x'],array[null::text],"
            "array[null::text],array[null::text],array[90000::bigint],100000000,false,"
            f"'{context}',false,1000000,1000000,90000,60000,86400000,10000,1800000,null)")


def record(tenant: str, context: str, run: str) -> str:
    result = '{"v":1,"stdout":"' + "x" * 500 + '"}'
    return (f"pathbox.record_v2('{tenant}','{run}','{context}','completed',0,null,5,0,500,'{{}}','{result}',true,null,"
            "1800000,null,null)")


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


def prepare(tenant: str) -> tuple[str, str]:
    context, run = str(uuid.uuid4()), str(uuid.uuid4())
    psql(f"""select outcome from {acquire(tenant, 'c', context, run)};
        select (r.ctx).id from pathbox.ready_v1('{tenant}','{context}',1,'{run}','sb-{tenant}',null,null,null,null,null,
            null,null,null,1800000) r;
        select {record(tenant, context, run)};""")
    return context, run


def play(tenant: str) -> list[dict[str, float]]:
    context, _ = prepare(tenant)
    runs = [str(uuid.uuid4()) for _ in range(CALLS)]
    pairs = [measure("acquire + record, warm", [s for run in runs for s in (
        acquire(tenant, "c", context, run), record(tenant, context, run))])]
    pairs[0]["us"] *= 2
    pairs[0]["wal"] *= 2
    limit = acquire(tenant, "never", str(uuid.uuid4()), str(uuid.uuid4())).replace("1000000,1000000", "1,1")
    pairs.append(measure("limit refused", [limit.replace("'never'", f"'never{n}'") for n in range(200)]))
    pairs.append(measure("reap, nothing due", ["pathbox.reap_v2(50,2592000000,60000,86400000)"] * 200))
    return pairs


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
    context, run = prepare("locks")
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
    psql(f"drop database {DATABASE}", "postgres")


if __name__ == "__main__":
    main()
