//! What is used, what it costs and how much of it a tenant may have: numbers in whole units, so that sums are exact.

use std::time::Duration;

use chrono::{DateTime, Days, NaiveDate, NaiveTime, Utc};
use serde::{Deserialize, Serialize};

use super::context::text_enum;
use super::{ContextKey, ConversationId, Owner, PathId, TenantId};

text_enum! {
    /// How long a quota lasts before it begins again, in UTC.
    Period {
        /// From midnight to midnight.
        Day = "day",
        /// A calendar month.
        Month = "month",
    }
}

text_enum! {
    /// What a quota counts.
    QuotaKind {
        /// Runs that were admitted.
        Executions = "executions",
        /// Seconds in which a sandbox lived.
        SandboxSeconds = "sandbox_seconds",
        /// What both cost, by the price table.
        Money = "money",
    }
}

impl QuotaKind {
    /// In words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Executions => "runs",
            Self::SandboxSeconds => "sandbox seconds",
            Self::Money => "money",
        }
    }
}

/// How much a tenant may use in a period; `None` is as much as it likes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quota {
    /// When it begins again (each month).
    pub period: Period,
    /// Seconds of sandboxes.
    pub sandbox_seconds: Option<u64>,
    /// Runs.
    pub executions: Option<u64>,
    /// Millionths of the price table's currency.
    pub money_micros: Option<u64>,
}

impl Default for Quota {
    fn default() -> Self {
        Self { period: Period::Month, sandbox_seconds: None, executions: None, money_micros: None }
    }
}

impl Quota {
    /// Whether it limits anything.
    pub fn is_limited(&self) -> bool {
        self.sandbox_seconds.is_some() || self.executions.is_some() || self.money_micros.is_some()
    }

    /// This quota, where a tenant's `own` leaves it open.
    pub fn or(&self, own: &OwnQuota) -> Self {
        Self {
            period: own.period.unwrap_or(self.period),
            sandbox_seconds: own.sandbox_seconds.or(self.sandbox_seconds),
            executions: own.executions.or(self.executions),
            money_micros: own.money_micros.or(self.money_micros),
        }
    }

    /// The first quota that this use goes beyond.
    pub fn reached(&self, used: &Use, prices: &Prices, now: DateTime<Utc>) -> Option<QuotaReached> {
        let seconds = |ms: u64| ms.div_ceil(1000);
        let rows = [
            (QuotaKind::Executions, self.executions, used.executions, used.asked),
            (
                QuotaKind::SandboxSeconds,
                self.sandbox_seconds.map(|it| it.saturating_mul(1000)),
                used.sandbox_ms,
                used.held_ms,
            ),
            (
                QuotaKind::Money,
                self.money_micros,
                prices.cost_micros(used.sandbox_ms, used.executions),
                prices.cost_micros(used.held_ms, used.asked),
            ),
        ];
        let (kind, limit, used, reserved) = rows
            .into_iter()
            .filter_map(|(kind, limit, used, reserved)| Some((kind, limit?, used, reserved)))
            .find(|(_, limit, used, reserved)| used.saturating_add(*reserved) > *limit)?;
        let units = |amount| if kind == QuotaKind::SandboxSeconds { seconds(amount) } else { amount };
        Some(QuotaReached {
            kind,
            limit: units(limit),
            used: units(used),
            reserved: units(reserved),
            period: self.period,
            resets_in: (self.period.end(now) - now).to_std().unwrap_or_default(),
        })
    }
}

/// What a tenant's own row says; `None` is the configured quota.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnQuota {
    /// When it begins again.
    pub period: Option<Period>,
    /// Seconds of sandboxes.
    pub sandbox_seconds: Option<u64>,
    /// Runs.
    pub executions: Option<u64>,
    /// Millionths of the price table's currency.
    pub money_micros: Option<u64>,
}

/// What a tenant has used in a period, and what is reserved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Use {
    /// Runs that have ended.
    pub executions: u64,
    /// Runs that have asked and not ended.
    pub asked: u64,
    /// Milliseconds of sandboxes that have ended.
    pub sandbox_ms: u64,
    /// Milliseconds that live sandboxes have taken and may still take.
    pub held_ms: u64,
}

/// Which quota is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReached {
    /// What it counts.
    pub kind: QuotaKind,
    /// How much there is: runs, seconds, or millionths of the currency.
    pub limit: u64,
    /// How much is used.
    pub used: u64,
    /// How much is reserved, with what this call would need.
    pub reserved: u64,
    /// How long it lasts.
    pub period: Period,
    /// When it begins again.
    pub resets_in: Duration,
}

/// What things cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prices {
    /// Its name, for people (`USD`).
    pub currency: String,
    /// An hour of a sandbox, in millionths (0).
    pub sandbox_hour_micros: u64,
    /// A run, in millionths (0).
    pub execution_micros: u64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { currency: "USD".into(), sandbox_hour_micros: 0, execution_micros: 0 }
    }
}

impl Prices {
    /// What so much costs, in millionths, rounded up.
    pub fn cost_micros(&self, sandbox_ms: u64, executions: u64) -> u64 {
        let time = (u128::from(sandbox_ms) * u128::from(self.sandbox_hour_micros)).div_ceil(3_600_000);
        let runs = u128::from(executions) * u128::from(self.execution_micros);
        u64::try_from(time + runs).unwrap_or(u64::MAX)
    }
}

/// What a path used on a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Whose path.
    pub key: ContextKey,
    /// Which day, UTC.
    pub day: NaiveDate,
    /// Runs that ended.
    pub executions: u64,
    /// Milliseconds of those.
    pub run_ms: u64,
    /// Milliseconds in which its sandbox lived, up to now for one that lives.
    pub sandbox_ms: u64,
    /// Bytes of output.
    pub output_bytes: u64,
}

text_enum! {
    /// What lines of a report are about.
    UsageBy {
        /// A line a tenant.
        Tenant = "tenant",
        /// A line a conversation.
        Conversation = "conversation",
        /// A line a path.
        Path = "path",
        /// A line a day.
        Day = "day",
    }
}

/// A line of a report. What it is not about is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageLine {
    /// Whose.
    pub tenant: TenantId,
    /// Which principal's; empty for what belongs to the tenant as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Which conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationId>,
    /// Which path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathId>,
    /// Which day, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<NaiveDate>,
    /// Runs that ended.
    pub executions: u64,
    /// Milliseconds of those.
    pub run_ms: u64,
    /// Milliseconds of sandboxes.
    pub sandbox_ms: u64,
    /// Bytes of output.
    pub output_bytes: u64,
    /// What it costs, in the currency of the price table.
    pub cost: String,
    /// The same in millionths.
    #[serde(skip)]
    pub cost_micros: u64,
}

/// Sums up what paths used.
pub fn report(rows: &[UsageRow], by: UsageBy, prices: &Prices) -> Vec<UsageLine> {
    let mut lines = std::collections::BTreeMap::new();
    for row in rows {
        let key = &row.key;
        let place = match by {
            UsageBy::Tenant => (None, None, None, None),
            UsageBy::Conversation => (Some(key.owner.clone()), Some(key.conversation.clone()), None, None),
            UsageBy::Path => {
                (Some(key.owner.clone()), Some(key.conversation.clone()), Some(key.path.clone()), None)
            }
            UsageBy::Day => (None, None, None, Some(row.day)),
        };
        let sums: &mut [u64; 4] = lines.entry((key.tenant.clone(), place)).or_default();
        let more = [row.executions, row.run_ms, row.sandbox_ms, row.output_bytes];
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    lines
        .into_iter()
        .map(
            |((tenant, (owner, conversation, path, day)), [executions, run_ms, sandbox_ms, output_bytes])| {
                let cost_micros = prices.cost_micros(sandbox_ms, executions);
                let cost = decimal(cost_micros);
                UsageLine {
                    tenant,
                    owner,
                    conversation,
                    path,
                    day,
                    executions,
                    run_ms,
                    sandbox_ms,
                    output_bytes,
                    cost,
                    cost_micros,
                }
            },
        )
        .collect()
}

impl Period {
    /// When the one that `now` is in began.
    pub fn start(self, now: DateTime<Utc>) -> NaiveDate {
        self.first(now.date_naive())
    }

    /// The first day of the one that a day is in.
    pub fn first(self, day: NaiveDate) -> NaiveDate {
        match self {
            Self::Day => day,
            Self::Month => chrono::Datelike::with_day(&day, 1).unwrap_or(day),
        }
    }

    /// When it ends.
    pub fn end(self, now: DateTime<Utc>) -> DateTime<Utc> {
        let start = self.start(now);
        let next = match self {
            Self::Day => start.checked_add_days(Days::new(1)),
            Self::Month => start.checked_add_months(chrono::Months::new(1)),
        };
        midnight(next.unwrap_or(start))
    }
}

/// The time from `from` to `to` by day, in milliseconds.
pub fn by_day(from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<(NaiveDate, u64)> {
    let mut days = Vec::new();
    let mut from = from;
    while from < to {
        let day = from.date_naive();
        let next = day.checked_add_days(Days::new(1)).map_or(to, midnight).min(to);
        days.push((day, u64::try_from((next - from).num_milliseconds()).unwrap_or(0)));
        from = next;
    }
    days
}

/// When a day begins.
pub fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}

/// Millionths as a decimal: `1.5`, `0.000001`.
pub fn decimal(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let text = text.trim_end_matches('0');
    text.strip_suffix('.').unwrap_or(text).to_owned()
}

/// A decimal with at most six places as millionths.
pub fn micros(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(places) || places.len() > 6 {
        return None;
    }
    whole.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(format!("{places:0<6}").parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn time_counts_on_the_days_that_it_was_in() {
        let days = by_day(at("2026-11-29T23:59:58Z"), at("2026-12-01T00:00:01Z"));
        let milliseconds: Vec<_> = days.iter().map(|(day, ms)| (day.to_string(), *ms)).collect();
        let expected = [("2026-11-29", 2000), ("2026-11-30", 86_400_000), ("2026-12-01", 1000)];
        assert_eq!(milliseconds, expected.map(|(day, ms)| (day.to_owned(), ms)));
    }

    #[test]
    fn a_period_begins_and_ends_at_midnight_utc() {
        let now = at("2026-12-31T23:00:00Z");
        assert_eq!(Period::Month.start(now).to_string(), "2026-12-01");
        assert_eq!(Period::Month.end(now), at("2027-01-01T00:00:00Z"));
        assert_eq!(Period::Day.end(now), at("2027-01-01T00:00:00Z"));
    }

    #[test]
    fn reservations_count_like_usage() {
        let quota = Quota { sandbox_seconds: Some(10), ..Quota::default() };
        let now = at("2026-11-30T00:00:00Z");
        let full = Use { sandbox_ms: 4000, held_ms: 6000, ..Use::default() };
        assert_eq!(quota.reached(&full, &Prices::default(), now), None);
        let over = Use { held_ms: 6001, ..full };
        let reached = quota.reached(&over, &Prices::default(), now).unwrap();
        assert_eq!((reached.kind, reached.limit, reached.used), (QuotaKind::SandboxSeconds, 10, 4));
        assert_eq!(reached.resets_in, Duration::from_secs(24 * 3600));
    }

    #[test]
    fn money_is_exact_and_rounded_up() {
        let prices = Prices { sandbox_hour_micros: 50_000, execution_micros: 100, ..Prices::default() };
        assert_eq!(prices.cost_micros(3_600_000, 2), 50_200);
        assert_eq!(prices.cost_micros(1, 0), 1);
        for (text, expected) in
            [("0.05", Some(50_000)), ("3", Some(3_000_000)), (".5", None), ("1.0000001", None), ("-1", None)]
        {
            assert_eq!(micros(text), expected, "{text}");
        }
        assert_eq!([decimal(50_000), decimal(3_000_000), decimal(1)], ["0.05", "3", "0.000001"]);
    }
}
