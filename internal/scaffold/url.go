package scaffold

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/sink/httpsink"
)

// URL is a URL as it may be written into a file.
type URL struct {
	// Text has variables in the place of secrets, ${NAME}.
	Text string
	// Full is the URL itself, secrets and all.
	Full string
	// Variables are those of the Text.
	Variables []Variable
}

// Variable is one of the environment.
type Variable struct {
	Name string
	// What it holds, for people.
	What string
	// Value is what it has to be, as far as that is known.
	Value string
}

// Lookup finds a variable of the environment, as os.LookupEnv does.
type Lookup func(name string) (value string, set bool)

var (
	expansion    = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)
	variableName = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	// telling are the names of a query's parameters that hold secrets.
	telling = regexp.MustCompile(`(?i)(key|token|secret|pass|pwd|auth|sig|code|credential|jwt|bearer|^p$)`)
	// harmless are those of a query's parameters of an API that are known to hold none.
	harmless = regexp.MustCompile(`(?i)^(api.?)?(version|v)$|^(tenant|account|project|workspace|org|organi[sz]ation|region|thread|user|client)(.?id)?$|` +
		`^(format|type|mode|source|event|topic|channel|index|pipeline|refresh|routing|pretty|wait|timeout|limit|fields|properties|lang|language|locale|database|db|table|collection|precision|async|upsert|strict|op_type|content.?type)$`)
	notName = regexp.MustCompile(`[^A-Z0-9]+`)
)

// Literal returns the variables that a URL names itself, ${NAME}, and those that are
// not set. The URL's text is the caller's.
func Literal(text, what string, env Lookup) (u URL, unset []string) {
	u = URL{Text: text}
	for _, m := range expansion.FindAllStringSubmatch(text, -1) {
		value, set := env(m[1])
		if !set {
			unset = append(unset, m[1])
		}
		u.Variables = append(u.Variables, Variable{m[1], what, value})
	}
	whole := len(u.Variables) == 1 && text == "${"+u.Variables[0].Name+"}"
	u.Full = expansion.ReplaceAllStringFunc(text, func(name string) string {
		value, _ := env(name[2 : len(name)-1])
		if !whole {
			value = url.PathEscape(value)
		}
		return value
	})
	return u, unset
}

// Same finds the variable of the environment, NAME=value each, that the whole URL came
// from: a shell put it in. ok is false when there is none.
func Same(text, what string, environ []string) (u URL, ok bool) {
	var names []string
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if value == text && variableName.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return URL{}, false
	}
	name := slices.Min(names)
	if slices.Contains(names, "DATABASE_URL") {
		name = "DATABASE_URL"
	}
	return URL{"${" + name + "}", text, []Variable{{name, what, text}}}, true
}

// names are those of the variables for what is secret in a URL.
type names struct {
	// password is for the one of a user, token for a user that is one; other stands
	// before them where the environment has another value of that name.
	password, token, other string
	what                   string
}

// Masked puts variables in the place of what is secret in a URL. kind is "source" or
// "sink". The URL is taken apart by its text: it need not be a good one.
func Masked(text, kind string, env Lookup) URL {
	u := URL{Full: text}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		u.Text = text
		return u
	}
	if name, what := secretPath(text); name != "" {
		u.Text, u.Variables = "${"+name+"}", []Variable{{name, what, text}}
		return u
	}
	n := namesFor(scheme, kind)
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		user, password, both := strings.Cut(authority[:at], ":")
		switch {
		case both && password != "":
			user += ":" + u.put(n.password, n.other, n.what+"'s password", decoded(password), env)
		case both:
			user += ":"
		case n.token != "" && user != "":
			user = u.put(n.token, n.other, n.what+"'s token", decoded(user), env)
		}
		authority = user + authority[at:]
	}
	path, query, asked := strings.Cut(tail, "?")
	isAPI := strings.HasPrefix(scheme, "http")
	if isAPI {
		path = u.putSegments(authority, path, scheme, kind, n.other, env)
	}
	if asked {
		parameters := strings.Split(query, "&")
		for i, parameter := range parameters {
			name, value, _ := strings.Cut(parameter, "=")
			if value != "" && !strings.Contains(value, "{") && (telling.MatchString(name) || isAPI && mayBeSecret(name, value)) {
				variable := strings.Trim(notName.ReplaceAllString(strings.ToUpper(name), "_"), "_")
				if kind == "source" {
					variable = "DATABASE_" + variable
				}
				parameters[i] = name + "=" + u.put(variable, n.other, "the parameter "+name+" of "+kind+".url", decoded(value), env)
			}
		}
		path += "?" + strings.Join(parameters, "&")
	}
	u.Text = scheme + "://" + authority + path
	return u
}

func namesFor(scheme, kind string) names {
	switch {
	case kind == "source":
		return names{"PGPASSWORD", "", "SOURCE_", "the database"}
	case strings.HasPrefix(scheme, "redis"):
		return names{"REDIS_PASSWORD", "", "SINK_", "Redis"}
	case strings.HasSuffix(scheme, "nats"):
		return names{"NATS_PASSWORD", "NATS_TOKEN", "SINK_", "NATS"}
	}
	return names{"API_PASSWORD", "API_TOKEN", "SINK_", "the API"}
}

// putSegments puts variables in the place of what looks like a token in an API's path.
func (u *URL) putSegments(authority, path, scheme, kind, other string, env Lookup) string {
	secret := httpsink.SecretSegments(scheme + "://" + authority + path)
	segments, name := strings.Split(path, "/"), "API_PATH_TOKEN"
	for i, segment := range segments {
		if len(secret) == 0 || segment != secret[0] {
			continue
		}
		segments[i] = u.put(name, other, "what looks like a token in the path of "+kind+".url", decoded(segment), env)
		secret, name = secret[1:], fmt.Sprintf("API_PATH_TOKEN_%d", i+1)
	}
	return strings.Join(segments, "/")
}

// mayBeSecret tells whether a parameter of an API's URL may hold a secret: all but what is
// known to be none, or is too short for one.
func mayBeSecret(name, value string) bool {
	return len(value) >= 4 && value != "true" && value != "false" && !harmless.MatchString(name)
}

// secretPath names the variable for a URL that is a secret as a whole: webhooks.
func secretPath(text string) (name, what string) {
	if name = httpsink.Webhook(text); name == "" {
		return "", ""
	}
	return name + "_URL", "the URL itself; whoever has it may post"
}

// put adds a variable and returns how it is written.
func (u *URL) put(name, other, what, value string, env Lookup) string {
	if there, set := env(name); set && there != value {
		name = other + name
	}
	u.Variables = append(u.Variables, Variable{name, what, value})
	return "${" + name + "}"
}

func decoded(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

// hostAndPath are those of an http URL, in lower case; "" for others.
func hostAndPath(text string) (host, path string) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", ""
	}
	return strings.ToLower(u.Hostname()), strings.ToLower(u.Path)
}
