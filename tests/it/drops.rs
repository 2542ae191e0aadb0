//! What another process does is visible to the very next request, every time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use crate::support::{Random, Server, eventually, mail};

/// Two mailboxes' worth of what should be there.
type Model = BTreeMap<String, BTreeMap<String, String>>;

#[test]
fn fifteen_hundred_changes_are_each_seen_by_the_next_request() {
    let server = Server::start();
    let mut random = Random::new(0x5eed);
    let mut model = Model::new();
    let outside = server.spool.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    for step in 0..1_500 {
        let touched = change(&server, &outside, &mut model, &mut random, step);
        for mailbox in touched {
            let expected: Vec<_> = model.get(&mailbox).into_iter().flatten().collect();
            let listed = server.list(&mailbox);
            let listed: Vec<_> = listed
                .iter()
                .map(|entry| {
                    (
                        entry["id"].as_str().unwrap(),
                        entry["subject"].as_str().unwrap(),
                    )
                })
                .collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|(id, subject)| (id.as_str(), subject.as_str()))
                .collect();
            assert_eq!(listed, expected, "step {step} in {mailbox}");
        }
    }
}

/// Does one thing to the spool, or several within one tick, and tells which mailboxes it touched.
fn change(
    server: &Server,
    outside: &std::path::Path,
    model: &mut Model,
    random: &mut Random,
    step: usize,
) -> BTreeSet<String> {
    let times = if random.below(5) == 0 {
        1 + random.below(6)
    } else {
        1
    };
    let mut touched = BTreeSet::new();
    for turn in 0..times {
        let subject = format!("subject {step}.{turn}");
        let new = format!("id-{step}-{turn}");
        let mailbox = match random.below(12) {
            0 => format!("new-{step}-{turn}"),
            _ => format!("box-{}", random.below(4)),
        };
        let there = model.entry(mailbox.clone()).or_default();
        let directory = server.spool.join(&mailbox);
        fs::create_dir_all(&directory).unwrap();
        let known: Vec<String> = there.keys().cloned().collect();
        match random.below(if known.is_empty() { 3 } else { 8 }) {
            0 => {
                let part = outside.join("part");
                fs::write(&part, mail(&subject)).unwrap();
                fs::rename(part, directory.join(format!("{new}.eml"))).unwrap();
                there.insert(new, subject);
            }
            1 => {
                fs::write(directory.join(format!("{new}.eml")), mail(&subject)).unwrap();
                there.insert(new, subject);
            }
            2 => {
                let original = outside.join(&new);
                fs::write(&original, mail(&subject)).unwrap();
                fs::hard_link(&original, directory.join(format!("{new}.eml"))).unwrap();
                there.insert(new, subject);
            }
            3 | 4 => {
                let id = random.pick(&known);
                fs::remove_file(directory.join(format!("{id}.eml"))).unwrap();
                there.remove(id);
            }
            5 => {
                let id = random.pick(&known);
                fs::rename(
                    directory.join(format!("{id}.eml")),
                    directory.join(format!("{new}.eml")),
                )
                .unwrap();
                let subject = there.remove(id).unwrap();
                there.insert(new, subject);
            }
            6 => {
                // Replaced by another file, as editors and mail programs do it.
                let id = random.pick(&known);
                let part = outside.join("part");
                fs::write(&part, mail(&subject)).unwrap();
                fs::rename(part, directory.join(format!("{id}.eml"))).unwrap();
                there.insert(id.clone(), subject);
            }
            _ => {
                // The whole mailbox goes to another name.
                let to = format!("moved-{step}-{turn}");
                fs::rename(&directory, server.spool.join(&to)).unwrap();
                let messages = model.remove(&mailbox).unwrap();
                model.insert(to.clone(), messages);
                touched.insert(to);
            }
        }
        touched.insert(mailbox);
    }
    touched
}

#[test]
fn many_drops_within_one_tick_are_all_seen() {
    let server = Server::start();
    for round in 0..200 {
        let before = server.list("box").len();
        fs::create_dir_all(server.spool.join("box")).unwrap();
        for n in 0..5 {
            fs::write(server.spool.join(format!("box/{round}-{n}.eml")), mail("x")).unwrap();
            assert_eq!(server.list("box").len(), before + n + 1, "round {round}");
        }
    }
}

#[test]
fn every_client_sees_its_own_changes_whatever_the_others_do() {
    let server = Server::start();
    std::thread::scope(|scope| {
        for client in 0..6 {
            let server = &server;
            scope.spawn(move || {
                let subject_of = |id: &str| {
                    let list = server.list("box");
                    let entry = list.iter().find(|entry| entry["id"] == id);
                    entry.map(|entry| entry["subject"].as_str().unwrap().to_owned())
                };
                for round in 0..40 {
                    // The same id again and again, with and without the server's help.
                    let id = format!("client-{client}");
                    server.drop_message("box", &id, mail(&format!("first {round}")));
                    assert_eq!(subject_of(&id), Some(format!("first {round}")));
                    server.drop_message("box", &id, mail(&format!("second {round}")));
                    assert_eq!(subject_of(&id), Some(format!("second {round}")));
                    if round % 2 == 0 {
                        let deleted =
                            server.request("DELETE", &format!("/api/v1/mailbox/box/{id}"));
                        assert_eq!(deleted.status, 200);
                    } else {
                        fs::remove_file(server.spool.join(format!("box/{id}.eml"))).unwrap();
                    }
                    assert_eq!(subject_of(&id), None);
                }
            });
        }
    });
}

#[test]
fn a_file_under_a_known_inode_with_known_date_and_length_is_still_new() {
    let server = Server::start();
    let date = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let path = server.spool.join("box/a.eml");
    fs::create_dir(server.spool.join("box")).unwrap();
    for round in 0..20 {
        let _ = fs::remove_file(&path);
        fs::write(&path, mail(&format!("round {round:04}"))).unwrap();
        crate::support::set_date(&path, date);
        assert_eq!(
            server.list("box")[0]["subject"],
            format!("round {round:04}")
        );
    }
}

#[test]
fn a_replaced_file_is_right_in_get_at_once() {
    let server = Server::start();
    server.drop_message("box", "a", mail("first"));
    let path = server.spool.join("box/a.eml");
    assert_eq!(server.list("box")[0]["subject"], "first");
    for round in 0..100 {
        // In place, of the same length, within the same tick, with the old date put back.
        let date = fs::metadata(&path).unwrap().modified().unwrap();
        let subject = format!("r{round:04}");
        fs::write(&path, mail(&subject)).unwrap();
        if round % 2 == 0 {
            crate::support::set_date(&path, date);
        }
        assert_eq!(server.message("box", "a")["subject"], subject.as_str());
        assert_eq!(
            server.get("/api/v1/mailbox/box/a/source").body,
            mail(&subject).as_bytes()
        );
    }
}

#[test]
fn a_rewrite_in_place_reaches_the_list_within_seconds() {
    let server = Server::start();
    server.drop_message("box", "a", mail("first"));
    assert_eq!(server.list("box")[0]["subject"], "first");
    fs::write(server.spool.join("box/a.eml"), mail("other")).unwrap();
    eventually(
        Duration::from_secs(5),
        || match &server.list("box")[0]["subject"] {
            subject if subject == "other" => Ok(()),
            subject => Err(subject.clone()),
        },
    );
}

#[test]
fn a_file_that_is_still_being_written_is_shown_as_it_is_and_then_whole() {
    use std::io::Write;
    let server = Server::start();
    fs::create_dir(server.spool.join("box")).unwrap();
    let mut file = fs::File::create(server.spool.join("box/slow.eml")).unwrap();
    assert_eq!(server.list("box")[0]["subject"], "");
    assert_eq!(server.message("box", "slow")["size"], 0);
    file.write_all(b"Subject: ha").unwrap();
    assert_eq!(server.message("box", "slow")["subject"], "ha");
    file.write_all(b"lf\n\nbody").unwrap();
    drop(file);
    let message = server.message("box", "slow");
    assert_eq!(
        (&message["subject"], &message["body"]["text"]),
        (&"half".into(), &"body".into())
    );
    eventually(Duration::from_secs(5), || match &server.list("box")[0] {
        entry if entry["subject"] == "half" && entry["size"] == 19 => Ok(()),
        entry => Err(entry.clone()),
    });
}

#[test]
fn a_mailbox_that_is_removed_and_made_again_starts_anew() {
    let server = Server::start();
    for round in 0..20 {
        let id = format!("r{round}");
        server.drop_message("box", &id, mail(&id));
        assert_eq!(server.ids("box"), [id.as_str()]);
        assert_eq!(
            server
                .send("PATCH", &format!("/api/v1/mailbox/box/{id}"), &[], b"")
                .status,
            200
        );
        fs::remove_dir_all(server.spool.join("box")).unwrap();
        assert!(server.ids("box").is_empty());
    }
}

#[test]
fn a_populated_directory_that_is_moved_in_is_there_at_once() {
    let server = Server::start();
    let outside = server.spool.with_file_name("elsewhere");
    fs::create_dir(&outside).unwrap();
    for n in 0..50 {
        fs::write(outside.join(format!("{n:02}.eml")), mail("x")).unwrap();
    }
    assert!(server.ids("moved").is_empty());
    fs::rename(&outside, server.spool.join("moved")).unwrap();
    assert_eq!(server.ids("moved").len(), 50);
    fs::rename(server.spool.join("moved"), &outside).unwrap();
    assert!(server.ids("moved").is_empty());
}
