package chaos

import _ "github.com/Shopify/toxiproxy/v2"
