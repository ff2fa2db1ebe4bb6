#!/bin/sh
# Runs after an installation or an upgrade. It leaves restarting Nomad to the administrator.
# Arguments: "configure" and the previous version (Debian), or the number of installed
# versions (RPM).
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	# The restarted shim resumes its moves.
	systemctl try-restart ebbtide-shim.service || true
fi

case "$1 $2" in
"configure " | "1 ")
	echo "Ebbtide is installed. Next steps on a Nomad client:"
	echo "  ebbtide setup              # writes /etc/nomad.d/ebbtide.hcl, after showing it"
	echo "  systemctl restart nomad    # tasks keep running"
	echo "  ebbtide doctor -config /etc/nomad.d"
	;;
configure\ * | "2 ")
	echo "Ebbtide is upgraded. Nomad runs the old plugins until it is restarted; tasks keep"
	echo "running: systemctl restart nomad"
	;;
esac
