//! Where clients of a server connect, and whether they speak TLS: what `weir serve` and `weir threads` have in common.

use crate::error::{Failure, Outcome};
use clap::Args;
use flashweir_serve::Endpoint;
use flashweir_serve::nbd::{TlsKeys, TlsMode};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Sockets of a server.
#[derive(Debug, Args)]
pub(crate) struct ListenArgs {
    /// Listen on this unix socket; may be given several times
    #[arg(long, value_name = "PATH", help_heading = "Where clients connect")]
    pub(crate) unix: Vec<PathBuf>,
    /// Listen on this TCP address; may be given several times [default: 127.0.0.1:10809 without --unix]
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Where clients connect")]
    tcp: Vec<SocketAddr>,
    /// Certificate chain for TLS, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Where clients connect")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Where clients connect")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of this authority, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Where clients connect")]
    tls_client_ca: Option<PathBuf>,
    /// Refuse clients that do not speak TLS
    #[arg(long, requires = "tls_cert", help_heading = "Where clients connect")]
    tls_required: bool,
    /// Allow clear text on addresses that other machines can reach
    #[arg(long, help_heading = "Where clients connect")]
    clear_text: bool,
}

impl ListenArgs {
    /// Addresses to listen on, beside the control socket. Clear text leaves this machine only if that is allowed.
    pub(crate) fn endpoints(&self, control: Option<&PathBuf>) -> Outcome<Vec<Endpoint>> {
        if let Some(path) = control.filter(|path| self.unix.contains(path)) {
            let path = path.display();
            return Err(Failure::Usage(format!(
                "--control cannot be {path}: --unix is that socket: expected another"
            )));
        }
        let mut endpoints: Vec<Endpoint> = self.unix.iter().cloned().map(Endpoint::Unix).collect();
        for address in &self.tcp {
            let is_ours = match address.ip() {
                IpAddr::V4(ip) => ip.is_loopback(),
                IpAddr::V6(ip) => ip.is_loopback(),
            };
            if !is_ours && !self.tls_required && !self.clear_text {
                return Err(Failure::Usage(format!(
                    "--tcp {address} can be reached from other machines, and NBD in clear text protects nothing: expected \
                     --tls-cert, --tls-key and --tls-required, or --clear-text if that is meant"
                )));
            }
            endpoints.push(Endpoint::Tcp(*address));
        }
        if endpoints.is_empty() {
            endpoints.push(Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 10_809))));
        }
        Ok(endpoints)
    }

    /// Certificate and key, and what clients without TLS get.
    pub(crate) fn tls(&self) -> Outcome<(Option<TlsKeys>, TlsMode)> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else {
            return Ok((None, TlsMode::Off));
        };
        let keys = TlsKeys::load(certificate, key, self.tls_client_ca.as_deref()).map_err(Failure::usage)?;
        Ok((Some(keys), if self.tls_required { TlsMode::Required } else { TlsMode::Offered }))
    }
}
