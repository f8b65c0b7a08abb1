//! Time by a second way: calendars worked out by hand, working days counted one by one, months by another library.

use chrono::{Datelike, Days, Months, NaiveDate, Weekday};
use pathbox::analysis::Kind;
use serde_json::{Value, json};

use crate::analysis_run::{each, golden, output, refusal};

fn gap(kind: &str, from: &str, to: &str, amount: u32, unit: &str) -> Value {
    json!({"events": [{"id": "a", "date": from}, {"id": "b", "date": to}],
        "constraints": [{"id": "c", "type": kind, "from": "a", "to": "b", "amount": amount, "unit": unit}]})
}

fn with(mut parameters: Value, more: Value) -> Value {
    parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    parameters
}

fn stays(list: &[(&str, &str)], constraint: Value) -> Value {
    let mut events: Vec<_> = list
        .iter()
        .enumerate()
        .map(|(n, (from, to))| json!({"id": format!("s{n}"), "date": from, "end": to}))
        .collect();
    let of: Vec<_> = (0..list.len()).map(|n| format!("s{n}")).collect();
    events.push(json!({"id": "now", "date": "2024-06-30"}));
    let mut look = json!({"id": "c", "type": "look_back", "of": of, "at": "now"});
    look.as_object_mut().unwrap().extend(constraint.as_object().unwrap().clone());
    json!({"events": events, "constraints": [look]})
}

#[test]
fn calendars_by_hand() {
    let c = |pointer: &'static str, value: Value| (pointer, value);
    let status = |value: &str| c("/constraints/0/status", json!(value));
    let bound = |value: &str| c("/constraints/0/bound", json!(value));
    let slack = |value: i64| c("/constraints/0/slack_days", json!(value));
    golden(
        Kind::Timeline,
        vec![
            (
                "a month from 31 January of a leap year",
                gap("max_gap", "2024-01-31", "2024-02-29", 1, "months"),
                vec![status("holds"), bound("2024-02-29"), slack(0)],
            ),
            (
                "a month from 31 January of a common year",
                gap("max_gap", "2023-01-31", "2023-03-01", 1, "months"),
                vec![status("fails"), bound("2023-02-28"), slack(-1)],
            ),
            (
                "a year from 29 February",
                gap("min_gap", "2024-02-29", "2025-02-28", 1, "years"),
                vec![status("holds"), bound("2025-02-28"), slack(0)],
            ),
            (
                "a month from 30 April, clamped",
                gap("max_gap", "2024-04-30", "2024-05-31", 1, "months"),
                vec![status("fails"), bound("2024-05-30")],
            ),
            (
                "a month from 30 April, month end kept",
                with(gap("max_gap", "2024-04-30", "2024-05-31", 1, "months"), json!({"month_end": "keep"})),
                vec![status("holds"), bound("2024-05-31")],
            ),
            (
                "over the turn of the year",
                gap("max_gap", "2023-12-31", "2024-01-07", 1, "weeks"),
                vec![status("holds"), slack(0)],
            ),
            // Friday 22 December 2023 and three working days: Monday 25, Tuesday 26 are holidays; 27, 28, 29
            (
                "working days over holidays",
                with(
                    gap("min_gap", "2023-12-22", "2023-12-29", 3, "working_days"),
                    json!({"holidays": ["2023-12-25", "2023-12-26"]}),
                ),
                vec![status("holds"), bound("2023-12-29"), slack(0)],
            ),
            (
                "a weekend of one's own",
                with(
                    gap("min_gap", "2024-01-04", "2024-01-08", 2, "working_days"),
                    json!({"weekend": ["fri"]}),
                ),
                vec![bound("2024-01-07"), slack(1)],
            ),
            (
                "no working days lost",
                with(gap("min_gap", "2024-01-05", "2024-01-07", 2, "working_days"), json!({"weekend": []})),
                vec![status("holds"), slack(0)],
            ),
            // 30 days from 1 June 2024 is Monday 1 July; from 31 May it is Sunday 30 June, moved to Monday
            (
                "rolled to the next working day",
                {
                    let mut p = gap("max_gap", "2024-05-31", "2024-07-01", 30, "days");
                    p["constraints"][0]["roll"] = json!("next");
                    p
                },
                vec![status("holds"), bound("2024-07-01"), slack(0)],
            ),
            (
                "rolled back",
                {
                    let mut p = gap("max_gap", "2024-05-31", "2024-06-28", 30, "days");
                    p["constraints"][0]["roll"] = json!("previous");
                    p
                },
                vec![bound("2024-06-28"), slack(0)],
            ),
            (
                "deadline",
                json!({"events": [{"id": "e", "date": "2024-03-02"}], "constraints": [{"id": "c", "type": "deadline", "event": "e", "date": "2024-03-01"}]}),
                vec![status("fails"), slack(-1)],
            ),
            (
                "not before",
                json!({"events": [{"id": "e", "date": "2024-03-02"}], "constraints": [{"id": "c", "type": "not_before", "event": "e", "date": "2024-02-28"}]}),
                vec![status("holds"), slack(3)],
            ),
            (
                "order",
                json!({"events": [{"id": "a", "date": "2024-03-02"}, {"id": "b", "date": "2024-03-02"}], "constraints": [{"id": "c", "type": "order", "events": ["a", "b"]}]}),
                vec![status("holds"), slack(0)],
            ),
            (
                "strict order",
                json!({"events": [{"id": "a", "date": "2024-03-02"}, {"id": "b", "date": "2024-03-02"}], "constraints": [{"id": "c", "type": "order", "events": ["a", "b"], "strict": true}]}),
                vec![status("fails"), slack(-1)],
            ),
            (
                "order with a hole that already fails",
                json!({"events": [{"id": "a", "date": "2024-03-02"}, {"id": "h"}, {"id": "b", "date": "2024-03-01"}], "constraints": [{"id": "c", "type": "order", "events": ["a", "h", "b"]}]}),
                vec![status("fails")],
            ),
            (
                "a working day",
                json!({"events": [{"id": "e", "date": "2024-03-02"}], "constraints": [{"id": "c", "type": "working_day", "event": "e"}]}),
                vec![status("fails"), bound("2024-03-04")],
            ),
            // 23:30 in UTC on the 1st is the 2nd in Ireland's summer
            (
                "a time of another zone",
                with(
                    json!({"events": [{"id": "e", "date": "2024-07-01T23:30:00Z"}], "constraints": [{"id": "c", "type": "deadline", "event": "e", "date": "2024-07-01"}]}),
                    json!({"timezone": "+01:00"}),
                ),
                vec![status("fails"), c("/timezone", json!("+01:00"))],
            ),
            (
                "a leap second belongs to the day that it ends",
                json!({"events": [{"id": "e", "date": "2016-12-31T23:59:60Z"}], "constraints": [{"id": "c", "type": "deadline", "event": "e", "date": "2016-12-31"}]}),
                vec![status("holds")],
            ),
            (
                "more digits than a clock has",
                json!({"events": [{"id": "e", "date": "2016-12-31T23:59:59.12345678901Z"}], "constraints": [{"id": "c", "type": "deadline", "event": "e", "date": "2016-12-31"}]}),
                vec![status("holds")],
            ),
            (
                "no date",
                json!({"events": [{"id": "e"}], "constraints": [{"id": "c", "type": "deadline", "event": "e", "date": "2024-07-01"}]}),
                vec![
                    status("unknown"),
                    c("/overall", json!("unknown")),
                    c("/events/0/latest", json!("2024-07-01")),
                    c("/events/0/earliest", json!(null)),
                ],
            ),
            // 30 June 2024 is the 182nd day of the year, so 180 days that end on it begin on the 3rd: of a stay from
            // 1 January to 1 April 29 + 29 + 31 + 1 = 90 days count
            (
                "90 of 180",
                stays(&[("2024-01-01", "2024-04-01")], json!({"amount": 180, "max_days": 90})),
                vec![
                    status("holds"),
                    c("/constraints/0/days", json!(90)),
                    c("/constraints/0/window", json!(["2024-01-03", "2024-06-30"])),
                ],
            ),
            (
                "91 of 180",
                stays(
                    &[("2024-01-01", "2024-04-01"), ("2024-06-30", "2024-07-05")],
                    json!({"amount": 180, "max_days": 90}),
                ),
                vec![
                    status("fails"),
                    c("/constraints/0/days", json!(91)),
                    c("/constraints/0/room/max_days", json!(-1)),
                ],
            ),
            (
                "a day counts once",
                stays(
                    &[("2024-06-01", "2024-06-10"), ("2024-06-05", "2024-06-12")],
                    json!({"amount": 1, "unit": "months", "min_days": 12, "max_count": 2}),
                ),
                vec![
                    status("holds"),
                    c("/constraints/0/days", json!(12)),
                    c("/constraints/0/count", json!(2)),
                ],
            ),
            (
                "between the bounds",
                json!({"events": [{"id": "a", "date": "2024-01-10"}, {"id": "m"}, {"id": "b", "date": "2024-02-10"}], "constraints": [
                {"id": "c", "type": "min_gap", "from": "a", "to": "m", "amount": 7}, {"id": "d", "type": "min_gap", "from": "m", "to": "b", "amount": 2, "unit": "weeks"}]}),
                vec![
                    c("/events/1/earliest", json!("2024-01-17")),
                    c("/events/1/latest", json!("2024-01-27")),
                    c("/events/1/free_days", json!(10)),
                    c("/possible", json!(true)),
                ],
            ),
            (
                "a conflict of two among four",
                json!({"events": [{"id": "a", "date": "2024-01-10"}, {"id": "m"}, {"id": "n"}], "constraints": [
                {"id": "one", "type": "min_gap", "from": "a", "to": "n", "amount": 1}, {"id": "late", "type": "min_gap", "from": "a", "to": "m", "amount": 10},
                {"id": "two", "type": "min_gap", "from": "n", "to": "m", "amount": 1}, {"id": "early", "type": "deadline", "event": "m", "date": "2024-01-15"}]}),
                vec![
                    c("/conflict", json!(["late", "early"])),
                    c("/possible", json!(false)),
                    c("/overall", json!("fails")),
                ],
            ),
            (
                "a conflict that goes round",
                json!({"events": [{"id": "a"}, {"id": "b"}, {"id": "x"}], "constraints": [
                {"id": "1", "type": "min_gap", "from": "a", "to": "b", "amount": 1}, {"id": "2", "type": "min_gap", "from": "b", "to": "x", "amount": 1},
                {"id": "3", "type": "order", "events": ["x", "a"]}]}),
                vec![c("/conflict", json!(["1", "2", "3"]))],
            ),
            (
                "days left",
                json!({"as_of": "2024-02-28", "events": [{"id": "e", "date": "2024-03-01"}], "constraints": [{"id": "c", "type": "deadline", "event": "e", "date": "2024-03-10"}]}),
                vec![
                    c("/events/0/days_from_as_of", json!(2)),
                    c("/critical_dates/0/days_from_as_of", json!(11)),
                ],
            ),
            (
                "the calendar's last day",
                gap("min_gap", "9999-12-30", "9999-12-31", 1, "days"),
                vec![status("holds")],
            ),
        ],
    );
}

struct Series(u64);

impl Series {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn random_gaps_agree_with_another_calendar() {
    let mut series = Series(11);
    let start = NaiveDate::from_ymd_opt(2019, 1, 1).unwrap();
    let holidays: Vec<NaiveDate> = (0..60).map(|n| start + Days::new(n * 53 + n % 7)).collect();
    let works =
        |day: NaiveDate| !matches!(day.weekday(), Weekday::Sat | Weekday::Sun) && !holidays.contains(&day);
    let mut cases = Vec::new();
    for _ in 0..200 {
        let from = start + Days::new(series.below(2_500));
        let amount = series.below(40) as u32;
        let (unit, expected) = match series.below(4) {
            0 => ("days", from + Days::new(amount.into())),
            1 => ("months", from + Months::new(amount)),
            2 => ("years", from + Months::new(12 * amount)),
            _ => {
                let (mut day, mut left) = (from, amount);
                while left > 0 {
                    day = day + Days::new(1);
                    left -= u32::from(works(day));
                }
                ("working_days", day)
            }
        };
        let parameters = with(
            gap("min_gap", &from.to_string(), "2099-01-01", amount, unit),
            json!({"holidays": holidays}),
        );
        cases.push((parameters, expected));
    }
    for ((parameters, expected), report) in
        cases.iter().zip(each(Kind::Timeline, cases.iter().map(|case| case.0.clone())))
    {
        assert_eq!(report.unwrap().output["constraints"][0]["bound"], expected.to_string(), "{parameters}");
    }
}

#[test]
fn shifting_all_dates_shifts_all_answers() {
    let shifted = |by: u64| {
        let day = |text: &str| (text.parse::<NaiveDate>().unwrap() + Days::new(by)).to_string();
        json!({"events": [{"id": "a", "date": day("2024-01-10")}, {"id": "m"}, {"id": "b", "date": day("2024-02-10")}], "constraints": [
            {"id": "c", "type": "min_gap", "from": "a", "to": "m", "amount": 7}, {"id": "d", "type": "max_gap", "from": "a", "to": "b", "amount": 4, "unit": "weeks"},
            {"id": "e", "type": "deadline", "event": "m", "date": day("2024-02-01")}]})
    };
    let dates = |output: &Value| -> Vec<NaiveDate> {
        output["critical_dates"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["date"].as_str().unwrap().parse().unwrap())
            .collect()
    };
    let still = output(Kind::Timeline, shifted(0));
    let moved = output(Kind::Timeline, shifted(1_461));
    assert_eq!(dates(&still).iter().map(|day| *day + Days::new(1_461)).collect::<Vec<_>>(), dates(&moved));
    assert_eq!(still["counts"], moved["counts"]);
    assert_eq!(still["constraints"][1]["slack_days"], moved["constraints"][1]["slack_days"]);
}

#[test]
fn constraints_that_make_no_sense_are_refused_with_their_place() {
    let one = |constraint: Value| json!({"events": [{"id": "a", "date": "2024-01-01"}, {"id": "b"}], "constraints": [constraint]});
    for (parameters, said) in [
        (
            one(json!({"id": "c", "type": "deadline", "event": "a"})),
            "constraints[0].date: deadline needs event, date",
        ),
        (
            one(json!({"id": "c", "type": "deadline", "event": "z", "date": "2024-01-01"})),
            "constraints[0].event: there is no event 'z'",
        ),
        (
            one(json!({"id": "c", "type": "deadline", "event": "a", "date": "2024-01-01", "amount": 3})),
            "constraints[0].amount: does not go with deadline",
        ),
        (
            one(json!({"id": "c", "type": "min_gap", "from": "a", "to": "a", "amount": 3})),
            "constraints[0].to: a gap needs two events",
        ),
        (
            one(json!({"id": "c", "type": "order", "events": ["a", "b", "a"]})),
            "constraints[0].events: an event stands twice",
        ),
        (
            one(json!({"id": "c", "type": "look_back", "of": ["a"], "at": "b", "amount": 3})),
            "constraints[0]: look_back needs one of max_days",
        ),
        (
            one(json!({"id": "c", "type": "look_back", "of": ["a"], "at": "b", "amount": 0, "max_days": 1})),
            "constraints[0].amount: a window of no length",
        ),
        (
            with(
                one(json!({"id": "c", "type": "deadline", "event": "a", "date": "2024-01-01"})),
                json!({"timezone": "Mars/Olympus"}),
            ),
            "timezone: 'Mars/Olympus' is not known here",
        ),
        (
            with(
                one(json!({"id": "c", "type": "deadline", "event": "a", "date": "2024-01-01"})),
                json!({"timezone": "../../etc/passwd"}),
            ),
            "timezone: ",
        ),
        (
            json!({"events": [{"id": "a", "date": "2024-01-02", "end": "2024-01-01"}], "constraints": [{"id": "c", "type": "working_day", "event": "a"}]}),
            "events[0].end: the end needs a date",
        ),
        (
            json!({"events": [{"id": "a"}, {"id": "a"}], "constraints": [{"id": "c", "type": "working_day", "event": "a"}]}),
            "events[1].id: the id 'a' stands twice",
        ),
    ] {
        let refused = refusal(Kind::Timeline, parameters.clone());
        assert!(refused.contains(said), "{parameters}: {refused}");
    }
}
