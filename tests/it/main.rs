//! The integration tests: one binary, each module one topic, everything through a public door.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first failure")]
mod support;

mod abuse;
mod acquire_model;
mod analysis_cases;
mod analysis_data;
mod analysis_golden;
mod analysis_mcp;
mod analysis_names;
mod analysis_packs;
mod analysis_properties;
mod analysis_rules;
mod analysis_run;
mod analysis_tariffs;
mod analysis_tasks;
mod analysis_tax;
mod analysis_timeline;
mod architecture;
mod backup;
mod code_mode;
mod code_mode_faults;
mod code_mode_http;
mod console;
#[cfg(target_os = "linux")]
mod container_host;
mod crash_points;
mod database_away;
mod database_states;
mod e2b_contract;
mod e2b_door;
mod e2b_faults;
mod e2b_faults_page;
#[cfg(target_os = "linux")]
mod e2b_local;
mod e2b_streams;
mod erasure;
mod files_transfer;
mod generated;
mod guard_cli;
mod guard_documents;
mod guard_excuses;
mod guard_files;
mod guard_known;
mod guard_own_rules;
mod guard_pipelines;
mod guard_placeholders;
mod guard_policy;
mod guard_properties;
mod guard_quality;
mod guard_records;
mod guard_rules;
mod guard_tokens;
mod guard_ways_out;
#[cfg(target_os = "linux")]
mod host;
mod http_connections;
mod http_contract;
mod http_metrics;
mod http_oauth;
mod http_paths;
mod http_replicas;
mod http_security;
mod http_sessions;
#[cfg(target_os = "linux")]
mod jail;
mod journeys;
#[cfg(target_os = "linux")]
mod kernel_bash;
mod kernel_checkpoint;
#[cfg(target_os = "linux")]
mod kernel_contexts;
#[cfg(target_os = "linux")]
mod kernel_javascript;
#[cfg(target_os = "linux")]
mod kernel_python;
#[cfg(target_os = "linux")]
mod kernel_recordings;
mod kernel_roundtrip;
#[cfg(target_os = "linux")]
mod kernel_support;
mod languages;
mod limits;
mod mcp_clients;
mod mcp_conformance;
mod mcp_files;
mod mcp_legacy_sse;
mod mcp_long_runs;
mod mcp_stdio;
mod mcp_streamable_http;
mod mcp_tools;
mod metrics_moved;
mod pages;
mod principals;
mod replicas;
mod results_clients;
mod results_opened;
mod results_table;
mod run_cli;
mod shutdown;
mod store_contract;
mod store_ledger;
mod store_migrations;
mod store_postgres;
mod store_processes;
mod store_sqlite;
mod store_states;
mod store_tools;
mod telemetry_export;
mod terminal;
mod tool_search;
mod topologies;
mod upgrade;
mod workflow_steering;
mod workflows;
