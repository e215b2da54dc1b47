"""What a template does with texts and asks of them."""
