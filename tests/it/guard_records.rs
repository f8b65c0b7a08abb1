//! Tables and records of programs whose layout no other test has, with identifiers of many states: each value is replaced, and
//! lookalikes stay. Each text covers a kind that had been missed.

use pathbox::guard::{Guard, Numbering};

/// Texts, with the values that must be replaced in each.
const GONE: &[(&str, &[&str])] = &[
    // Heads: identifiers without one so far, in the languages of their states.
    ("naam,rodné číslo,amount\nX,7103192745,12\nY,710319/2745,13\n", &["7103192745", "710319/2745"]),
    ("name  CNP            qty\nX     1630615123457  3\n", &["1630615123457"]),
    ("name  ЕГН         qty\nX     7523169263  3\n", &["7523169263"]),
    ("| namn | EMŠO | id |\n|---|---|---|\n| X | 0101006500006 | 4 |\n", &["0101006500006"]),
    (
        "Kennitala: 450401-3150\nNIP: 856-734-62-15\nTAJ szám: 111 111 110\n",
        &["450401-3150", "856-734-62-15", "111 111 110"],
    ),
    ("{\"ΑΦΜ\": \"094259216\", \"αμκα\": \"01013099997\"}", &["094259216", "01013099997"]),
    ("cnpj;valor\n16.727.230/0001-97;3\n", &["16.727.230/0001-97"]),
    ("id,matricule\n1,1983021554742\n", &["1983021554742"]),
    ("id,telefonní číslo,heslo\n1,601 189 114,Winter_Sommer73\n", &["601 189 114", "Winter_Sommer73"]),
    ("id,passport_no,vat_id\n1,622753592,IE6388047V\n", &["622753592", "IE6388047V"]),
    ("name,CPF do titular\nX,529.982.247-25\n", &["529.982.247-25"]),
    // Layouts.
    ("||name||phone||\n|X|(022) 51597|\n|Y|022 51598|\n", &["(022) 51597", "022 51598"]),
    ("{|\n! name !! pesel\n|-\n| X || 44051401359\n|}\n", &["44051401359"]),
    ("name & rodn\\_cislo & pesel \\\\\n\\midrule\nX & 1 & 44051401359 \\\\\n", &["44051401359"]),
    ("name^mobile\nX^0049 30 487774\n", &["0049 30 487774"]),
    ("'name','ird'\n'X','049091850'\n", &["049091850"]),
    ("\"full name\" \"oib\"\n\"X Y\" \"33392005961\"\n", &["33392005961"]),
    ("COPY public.users (name, oib) FROM stdin;\nX Y\t33392005961\n\\.\n", &["33392005961"]),
    (
        "     | namn     oib            id |\n     |----------------------------|\n  1. | X Y      33392005961    55 |\n",
        &["33392005961"],
    ),
    (
        "<table><tr><th>name</th><th>nif</th></tr><tr><td>str</td><td>str</td></tr><tr><td>&quot;X&quot;</td><td>&quot;72724880F&quot;</td></tr></table>",
        &["72724880F"],
    ),
    (
        "<table><tr><td><b>name</b></td><td><b>oib</b></td></tr>\n<tr><td class=\"c\">X</td><td class=\"c\">33392005961</td></tr></table>",
        &["33392005961"],
    ),
    // Fields of records.
    ("User(name='X', mobiltelefon='010.1234.8041', id=5)\n", &["010.1234.8041"]),
    ("User{name=X Y, kennitala=450401-3150, city=Cork}\n", &["450401-3150"]),
    ("[{\"oib\"=>\"33392005961\", \"n\"=>3}]\n", &["33392005961"]),
    ("oib = ['33392005961', '33392005962']\n", &["33392005961"]),
    ("pl.Series('ssn', ['219-09-9998', '219099998'], dtype=pl.String),\n", &["219-09-9998", "219099998"]),
    // Heads with the owner of the number, and other words beside it.
    ("Lp.;Nr PESEL pracownika;Tel. kom.\n1;44051401359;12/363 60 63\n", &["44051401359", "12/363 60 63"]),
    ("ref,national_id\n12,44051401359\n", &["44051401359"]),
    ("| Service | User | Pass |\n|---|---|---|\n| db | svc | tiger086 |\n", &["tiger086"]),
    // SAS prints a blank line below the head; a wide gap comes before a number.
    ("Obs    SUBJID    SSN\n\n  3    8357      809-99-4055\n", &["809-99-4055"]),
    ("0      176.12.93.222\n", &["176.12.93.222"]),
    // A neighbour names it.
    (
        "{\"identifier\": [{\"system\": \"http://fhir.nl/fhir/NamingSystem/bsn\", \"value\": \"111222333\"}]}",
        &["111222333"],
    ),
    ("- type: passport\n  number: PL2321936\n", &["PL2321936"]),
    // Heads that are read by their parts.
    ("soc_sec_nbr;ort\n219099998;Graz\n", &["219099998"]),
    ("N.I.E. | ciudad\nY-1234568-B | Lugo\n", &["Y-1234568-B"]),
    (
        "{\"rfc_contribuyente\": \"GODE561231GR8\", \"rut_alumno\": \"12.345.678-5\"}",
        &["GODE561231GR8", "12.345.678-5"],
    ),
    ("社員マイナンバー,部署\n123456789018,営業\n", &["123456789018"]),
    ("user,mdp_provisoire\nada,Tig3r$82\n", &["Tig3r$82"]),
    ("user\tpassword\nada\ttiger-blue-63\nbob\tWkWqiftL\n", &["tiger-blue-63", "WkWqiftL"]),
    ("provider_npi,routing_nbr\n1234567893,021000021\n", &["1234567893", "021000021"]),
    ("user,pin,otp\nada,4711,482913\n", &["4711", "482913"]),
    (
        "INSERT INTO people (id, celular) VALUES\n(1, '55 9035 6303'),\n(2, '55 7794 0655');\n",
        &["9035", "0655"],
    ),
    // Sentences.
    ("meine Rentenversicherungsnummer ist 65170839J003; danke\n", &["65170839J003"]),
    ("Hei, henkilötunnukseni on 131052-308T ja\n", &["131052-308T"]),
    ("passeport n° 23IJ45302, délivré\n", &["23IJ45302"]),
    ("SV-Nummer des Mitarbeiters 65170839J003\n", &["65170839J003"]),
    ("Mon mot de passe provisoire : Tig3r$82\n", &["Tig3r$82"]),
    ("Ihr Bestätigungscode lautet 391513\n", &["391513"]),
    ("GET /people/nino/AB123456C/income HTTP/1.1\n", &["AB123456C"]),
    ("{Qty:35 Pin:2049}\n", &["2049"]),
    ("身份证号码为420106198401090042\n", &["420106198401090042"]),
    (
        "#{ref => 2,msisdn => <<\"46701241396\">>,password => <<\"M0nk3y59!\">>}\n",
        &["46701241396", "M0nk3y59!"],
    ),
    (
        "WHERE bsn NOT IN ('945807302', '215736813','930364260', '212997221') AND X in (4)",
        &["945807302", "215736813", "930364260", "212997221"],
    ),
    (
        "X bsn_437483393.csv passport_533380006.pdf phone_0871234567.txt ssn-536-22-8726.pdf",
        &["437483393", "533380006", "0871234567", "536-22-8726"],
    ),
];

/// Neighbours, and words with another meaning.
const KEPT: &[&str] = &[
    "run,rc,duration\n687937082,2,1416\n421234256,1,2919\n",
    "telemetry_events=499333594 mobile_sessions=575784328 tel_queue=0\n",
    "7f1a0a1719d4-7f6098cb15ba r-xp 55700840 08:01 3790949  /lib/x.so\n",
    "| Parameter | Type | Description |\n|---|---|---|\n| `password` | string | The user's password |\n| `api_key` | string | Key from the dashboard |\n",
    "quarter,cf,ebit\nQ1,1234567,7654321\n",
    "{\"cnp_count\": 1630615, \"nip\": \"pending\", \"oib\": null}\n",
    "! name !! score\n|-\n| X || 44051401359\n",
    "const uint64_t key = 0xEF9EB99608281EC7ULL;\n",
    "auth:\n  existingSecret: my-release-postgresql\n",
    "e.password=function(){return t.pass(n)}\n",
    "VAT No. IE5517747EH, DE314403650, FR19620058511\n",
    "  if (!Buffer.isBuffer(session) || options?.isServer)\n    return session;\n",
    "password_policy,token_count,phone_sales,passport_required\nA8$kLm92x,48213,4155550132,N12345678\n",
    "Incoming call (2 min 14 s)\n",
    "if token not in (\"begin\", \"end12345\"):\n",
    "cell_1234567 bsn_437483392 passport_required_533380006 run_437483393\n",
    "  units  revenue\n1  0532  4155550\n",
    "cost & phone calls \\\\\n12 & 5551234567 \\\\\n",
];

#[test]
fn values_of_records_and_tables_of_other_programs_are_gone() {
    let guard = Guard::default();
    for (text, values) in GONE {
        let mut numbering = Numbering::alone();
        let out = guard.text(text, &mut numbering).0.into_inner();
        for value in *values {
            assert!(!out.contains(value), "{value} is left: {out}");
        }
        assert!(!text.contains('X') || out.contains('X'), "{out}");
        assert_eq!(guard.text(&out, &mut numbering).0.into_inner(), out);
    }
}

#[test]
fn values_under_other_heads_are_unchanged() {
    let guard = Guard::default();
    for text in KEPT {
        assert_eq!(guard.text(text, &mut Numbering::alone()).0.into_inner(), *text);
    }
}
