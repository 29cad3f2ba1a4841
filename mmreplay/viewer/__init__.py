"""The web page on stores: what it shows, the server behind it, and a copy for static hosts."""
