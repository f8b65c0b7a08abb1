//! Each rule finds its examples and leaves its counter-examples.

use pathbox::guard::{Guard, Numbering, Policy, rules};

fn everything() -> Guard {
    let mut policy = Policy::default();
    for action in policy.actions.values_mut() {
        *action = pathbox::guard::Action::Redact;
    }
    Guard::new(policy).unwrap()
}

#[test]
fn every_rule_finds_each_of_its_examples() {
    let guard = everything();
    let mut missed = Vec::new();
    for rule in rules() {
        assert!(!rule.examples.is_empty(), "{} has no example, so nothing shows that it is reached", rule.id);
        for example in &rule.examples {
            let text = example.replace('·', "");
            let (_, report) = guard.text(&text, &mut Numbering::alone());
            if !report.rules.contains_key(&rule.id) {
                missed.push(format!("{}: {example} found {:?}", rule.id, report.rules));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn no_rule_finds_anything_in_its_counter_examples() {
    let guard = everything();
    let mut wrong = Vec::new();
    for rule in rules() {
        for text in &rule.counter_examples {
            let (out, report) = guard.text(&text.replace('·', ""), &mut Numbering::alone());
            if report.rules.contains_key(&rule.id) {
                wrong.push(format!("{}: {text} became {}", rule.id, *out));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn findings_in_a_line_do_not_depend_on_the_lines_after_it() {
    let guard = everything();
    let texts = [
        "auth=\n(\"user\", \"Xk39dlqPw0\")\n",
        "auth=(\"user\",\n\"Xk39dlqPw0\")\n",
        "NetworkCredential(\"user\", \"Xk39dlqPw0\n\", \"b\", \"Qw83nfKd2\")\n",
        "<wsse:Password Type=\nXk39dlqPw0!</wsse:Password>\n",
        "<setting name=\"password\"><value\n>Xk39dlqPw0!</value>\n",
        "login ci password portion \nmachine y\n",
        "Call 94103-1234\nUSA\n",
        "\"password: \\n, \n)\n",
    ];
    for text in texts {
        let found = |text: &str| guard.text(text, &mut Numbering::alone()).1.rules;
        let mut lines = std::collections::BTreeMap::new();
        for (rule, count) in text.split_inclusive('\n').flat_map(found) {
            *lines.entry(rule).or_insert(0) += count;
        }
        assert_eq!(found(text).into_iter().collect::<std::collections::BTreeMap<_, _>>(), lines, "{text}");
    }
}

/// Lists that span lines under a key without a meaning, in any letters, are closed again: the keys after them count.
#[test]
fn a_key_without_a_meaning_does_not_hide_the_next_ones() {
    for key in ["colour", "préfix", "Straße", "a\u{fffd}b", "prénom"] {
        let text = format!(
            "{{'{key}': ['rot',\n     'grün'],\n 'dni': ['29208362H',\n         '51407992W'],\n 'x': [[1,\n  2], [3]],\n 'bsn': ['227819810',\n   '281341278']}}\n"
        );
        let out = Guard::default().text(&text, &mut Numbering::alone()).0;
        for value in ["29208362H", "51407992W", "227819810", "281341278"] {
            assert!(!out.contains(value), "{key}: {}", *out);
        }
    }
    let text = r#"{"columns":["id","bsn"],"data":[[2,1e+281341278],[3,281341278]]}"#;
    let out = Guard::default().text(text, &mut Numbering::alone()).0;
    assert_eq!(*out, r#"{"columns":["id","bsn"],"data":[[2,1e+281341278],[3,"[NATIONAL_ID_1]"]]}"#);
}
