//! Judge: TLS, with certificates made for it.

use crate::judge::Finding;
use crate::place::Place;
use crate::program::{run, run_failing};
use crate::serve::files::{compare, image};
use crate::serve::server::{Server, TINY};

/// Only clients that trust the authority are served, and only over an encrypted connection.
pub(super) fn tls(place: &Place) -> Finding {
    let (ours, other) = (place.make_dir("pki")?, place.make_dir("other")?);
    for dir in [&ours, &other] {
        authority(place, dir)?;
    }
    certificate(place, &ours, "server")?;
    let client = place.make_dir("client")?;
    let authority_file = format!("{ours}/ca-cert.pem");
    std::fs::copy(&authority_file, format!("{client}/ca-cert.pem")).map_err(|error| error.to_string())?;
    std::fs::copy(format!("{ours}/ca-key.pem"), format!("{client}/ca-key.pem"))
        .map_err(|error| error.to_string())?;
    certificate(place, &client, "client")?;
    let (chain, key) = (format!("{ours}/server-cert.pem"), format!("{ours}/server-key.pem"));
    let listen = ["--tcp", "127.0.0.1:0", "--tls-cert", &chain, "--tls-key", &key, "--tls-required"];

    let server = Server::start(place, &[TINY, &listen])?;
    let (address, size) = (server.tcp()?.replace("127.0.0.1", "localhost"), server.counts()?.size);
    let uri = |dir: &str| format!("nbds://{address}/?tls-certificates={dir}");
    let info = run(place, &["nbdinfo", "--json", &uri(&ours)])?;
    if !info.contains("\"TLS\": true") {
        return Err(format!("nbdinfo sees no TLS: {info}"));
    }
    let (there, back) = (place.path("there.img"), place.path("back.img"));
    let data = image(&there, place.seed(), 20, size)?;
    run(place, &["nbdcopy", "--connections=4", &there, &uri(&ours)])?;
    run(place, &["nbdcopy", "--connections=4", &uri(&ours), &back])?;
    compare(&there, &back)?;
    // Connections without TLS are refused on both sockets, and so is a client that trusts another authority.
    run_failing(place, &["nbdinfo", &format!("nbd://{address}")])?;
    run_failing(place, &["nbdinfo", &server.uri()])?;
    run_failing(place, &["nbdinfo", &uri(&other)])?;
    server.stop()?;

    let server = Server::start(place, &[TINY, &listen, &["--tls-client-ca", &authority_file]])?;
    let address = server.tcp()?.replace("127.0.0.1", "localhost");
    let uri = |dir: &str| format!("nbds://{address}/?tls-certificates={dir}");
    run(place, &["nbdinfo", &uri(&client)])?;
    // This client knows the authority, but has no certificate from it.
    let stranger = place.make_dir("stranger")?;
    std::fs::copy(&authority_file, format!("{stranger}/ca-cert.pem")).map_err(|error| error.to_string())?;
    run_failing(place, &["nbdinfo", &uri(&stranger)])?;
    server.stop()?;
    Ok(format!("{:.1} MB of data there and back, 4 clients refused", data as f64 / 1e6))
}

/// Makes a new authority: `ca-cert.pem` and `ca-key.pem`.
fn authority(place: &Place, dir: &str) -> Result<(), String> {
    let (certificate, key) = (format!("{dir}/ca-cert.pem"), format!("{dir}/ca-key.pem"));
    let request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
    let rest = ["-nodes", "-days", "2", "-subj", "/CN=judges", "-keyout", &key, "-out", &certificate];
    run(place, &[&request[..], &rest].concat()).map(drop)
}

/// Makes a certificate of the authority in `dir` for a server or client on this machine: `WHO-cert.pem` and `WHO-key.pem`.
fn certificate(place: &Place, dir: &str, who: &str) -> Result<(), String> {
    let file = |name: &str| format!("{dir}/{name}");
    let (key, request, certificate) =
        (file(&format!("{who}-key.pem")), file("request.pem"), file(&format!("{who}-cert.pem")));
    let ask = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    run(place, &[&ask[..], &["-subj", "/CN=localhost", "-keyout", &key, "-out", &request]].concat())?;
    let names = place.write("names", b"subjectAltName=DNS:localhost,IP:127.0.0.1\n")?;
    let (authority, authority_key) = (file("ca-cert.pem"), file("ca-key.pem"));
    let sign = ["openssl", "x509", "-req", "-in", &request, "-CA", &authority, "-CAkey", &authority_key];
    let rest = ["-CAcreateserial", "-days", "2", "-extfile", &names, "-out", &certificate];
    run(place, &[&sign[..], &rest].concat()).map(drop)
}
