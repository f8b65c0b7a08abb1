//! Prices, quotas, and how long the audit chain is kept.

use std::time::Duration;

use super::load::{ConfigError, Source, Values};
use super::settings::{Setting, plain};
use crate::domain::usage::micros;
use crate::domain::{Period, Prices, Quota};

/// Their rows, in the order of the reference page.
pub(super) const SETTINGS: &[Setting] = &[
    plain(
        "usage.currency",
        &["PATHBOX_USAGE_CURRENCY"],
        "USD",
        "1 to 12 characters",
        "The currency of the prices, for display.",
    ),
    plain(
        "usage.price_sandbox_hour",
        &["PATHBOX_USAGE_PRICE_SANDBOX_HOUR"],
        "0",
        "0 to 1000000, at most six decimal places",
        "What an hour of a sandbox costs.",
    ),
    plain(
        "usage.price_execution",
        &["PATHBOX_USAGE_PRICE_EXECUTION"],
        "0",
        "0 to 1000000, at most six decimal places",
        "What a run costs, in addition.",
    ),
    plain(
        "usage.quota_period",
        &["PATHBOX_USAGE_QUOTA_PERIOD"],
        "month",
        "day or month",
        "When quotas start again, at midnight UTC.",
    ),
    plain(
        "usage.quota_sandbox_seconds",
        &["PATHBOX_USAGE_QUOTA_SANDBOX_SECONDS"],
        "",
        "0 to 1000000000000 (seconds)",
        "Sandbox seconds of a tenant in a period, unless it has a quota of its own; no limit when not set.",
    ),
    plain(
        "usage.quota_executions",
        &["PATHBOX_USAGE_QUOTA_EXECUTIONS"],
        "",
        "0 to 1000000000000",
        "Runs of a tenant in a period; no limit when not set.",
    ),
    plain(
        "usage.quota_money",
        &["PATHBOX_USAGE_QUOTA_MONEY"],
        "",
        "0 to 1000000, at most six decimal places",
        "What a tenant may cost in a period, by the prices; no limit when not set.",
    ),
    plain(
        "audit.retention_days",
        &["PATHBOX_AUDIT_RETENTION_DAYS"],
        "400",
        "1 to 36500 (days)",
        "How long entries of the audit chain are kept; the remaining entries still verify.",
    ),
];

impl Values {
    pub(super) fn prices(&self) -> Result<Prices, ConfigError> {
        let currency = self.get("usage.currency").trim().to_owned();
        if currency.is_empty() || currency.chars().count() > 12 {
            return Err(self.invalid("usage.currency", format!("{currency:?} does not fit")));
        }
        Ok(Prices {
            currency,
            sandbox_hour_micros: self.money("usage.price_sandbox_hour")?,
            execution_micros: self.money("usage.price_execution")?,
        })
    }

    pub(super) fn quota(&self) -> Result<Quota, ConfigError> {
        let count = |key: &'static str| match self.source(key) {
            Source::Default => Ok(None),
            _ => self.number(key, 0, 1_000_000_000_000).map(Some),
        };
        let period = [("day", Period::Day), ("month", Period::Month)];
        Ok(Quota {
            period: self.one_of("usage.quota_period", &period)?,
            sandbox_seconds: count("usage.quota_sandbox_seconds")?,
            executions: count("usage.quota_executions")?,
            money_micros: match self.source("usage.quota_money") {
                Source::Default => None,
                _ => Some(self.money("usage.quota_money")?),
            },
        })
    }

    pub(super) fn audit_retention(&self) -> Result<Duration, ConfigError> {
        Ok(Duration::from_secs(86_400 * self.number::<u64>("audit.retention_days", 1, 36_500)?))
    }

    /// An amount of money in millionths.
    fn money(&self, key: &'static str) -> Result<u64, ConfigError> {
        let text = self.get(key).trim();
        micros(text)
            .filter(|micros| *micros <= 1_000_000_000_000)
            .ok_or_else(|| self.invalid(key, format!("{text:?} is not an amount of that form")))
    }
}
