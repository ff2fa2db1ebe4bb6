# The configuration of ebbtide-shim.service, which is disabled until you enable it:
#
#   systemctl enable --now ebbtide-shim
#
# All options are optional; docs/shim.md, in /usr/share/doc/ebbtide, lists them.
# `systemctl reload ebbtide-shim` reloads this file.

# Log decisions without changing anything.
#dry_run = true

nomad {
  # Default: NOMAD_ADDR in /etc/ebbtide/shim.env, else http://127.0.0.1:4646.
  #address = "https://127.0.0.1:4646"

  # The unit passes /etc/ebbtide/token. Without ACLs, remove this line, and
  # LoadCredential=token:/etc/ebbtide/token from the unit (systemctl edit --full).
  token_file = "/run/credentials/ebbtide-shim.service/token"

  # With TLS; the unit needs its lines for it, too:
  #ca_file   = "/run/credentials/ebbtide-shim.service/ca.pem"
  #cert_file = "/run/credentials/ebbtide-shim.service/cert.pem"
  #key_file  = "/run/credentials/ebbtide-shim.service/key.pem"
}
