package main

// accessMutants are about who may see and change what at the admin endpoint.
var accessMutants = []mutant{
	{
		name: "a route of the console that changes something is open to read-only tokens",
		file: "internal/console/console.go",
		old:  "Guard.ProtectChange(s.retryNow, s.denied())",
		new:  "Guard.Protect(s.retryNow, s.denied())",
		pkg:  "./internal/console", test: "TestReadOnly_ChangesNothing",
	},
	{
		name: "the configuration's tokens are all allowed to change something",
		file: "internal/engine/engine.go",
		old:  "ReadOnly: t.ReadOnly}",
		new:  "}",
		pkg:  "./internal/console", test: "TestReadOnly_ChangesNothing",
	},
	{
		name: "the console offers changes to a read-only user",
		file: "internal/console/templates/dead_show.html",
		old:  "{{if and .Open (not $readOnly)}}",
		new:  "{{if .Open}}",
		pkg:  "./internal/console", test: "TestReadOnly_Console",
	},
	{
		name: "/api/dead shows payloads that are hidden",
		file: "internal/admin/deadapi.go",
		old:  "if s.config.HidePayloads {",
		new:  "if false && s.config.HidePayloads {",
		pkg:  "./internal/console", test: "TestPayloads_Hidden",
	},
	{
		name: "the console shows keys that are hidden",
		file: "internal/console/dead.go",
		old:  "if s.config.HidePayloads {",
		new:  "if false && s.config.HidePayloads {",
		pkg:  "./internal/console", test: "TestPayloads_Hidden",
	},
	{
		name: "a certificate whose key has not followed is served",
		file: "internal/certfile/certfile.go",
		old:  "case err == nil:\n		c.current",
		new:  "case err == nil || true:\n		c.current",
		pkg:  "./internal/certfile", test: "TestCertificate_Reload",
	},
	{
		name: "health trusts every certificate",
		file: "internal/certfile/certfile.go",
		old:  "if !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {",
		new:  "if false && !bytes.Equal(s.PeerCertificates[0].Raw, block.Bytes) {",
		pkg:  "./internal/certfile", test: "TestClient",
	},
	{
		name: "a client's header names the person",
		file: "internal/access/proxy.go",
		old:  "|| !p.trusts(r) {",
		new:  "{",
		pkg:  "./internal/console", test: "TestProxy",
	},
	{
		name: "a header that a proxy added to the client's names the person",
		file: "internal/access/proxy.go",
		old:  "|| len(values) != 1 ||",
		new:  "|| len(values) < 1 ||",
		pkg:  "./internal/access", test: "TestProxy",
	},
	{
		name: "an empty token is accepted",
		file: "internal/config/admin.go",
		old:  `given && t.Token.Reveal() == "" &&`,
		new:  `given && false &&`,
		pkg:  "./internal/config", test: "TestBadFiles_AreRejected",
	},
}
