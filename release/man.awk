# Turns the output of `relay help` into a manual page.
function escape(text) {
	gsub(/\\/, "\\e", text)
	gsub(/-/, "\\-", text)
	sub(/^[.']/, "\\\\\\&&", text)
	return text
}
BEGIN {
	printf ".TH RELAY 1 \"%s\" \"relay %s\"\n", date, version
	print ".SH NAME\nrelay \\- moves events from a table of a database to Redis, NATS or HTTP"
	print ".SH SYNOPSIS\n.B relay\n.I command\n.RI [ options ]\n.SH DESCRIPTION"
}
/^Usage:/ { part = "usage"; next }
/^Available Commands:/ { part = "commands"; print ".SH COMMANDS"; next }
/^Flags:/ { part = "flags"; next }
part == "" && /^$/ { paragraph = ".PP\n"; next }
part == "" { print paragraph escape($0); paragraph = ""; next }
part == "commands" && /^  / {
	name = $1
	sub(/^ +[^ ]+ +/, "")
	printf ".TP\n.B relay %s\n%s\n", escape(name), escape($0)
}
END {
	print ".PP\n.B relay help\n.I command\ndescribes the options of a command."
	print ".SH FILES\n.TP\n.I /etc/relay/relay.yaml\nThe configuration that the systemd units read. Without them it is the file in"
	print "RELAY_CONFIG, otherwise relay.yaml in the working directory."
	print ".SH EXIT STATUS\n0 done, 1 failed while running, 2 wrong usage or wrong configuration."
	print ".SH SEE ALSO\nhttps://github.com/outboxrelay/relay"
}
