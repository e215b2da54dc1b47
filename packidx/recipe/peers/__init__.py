"""Other trainers' files as recipes: what each of their keys comes to, trainer by trainer."""
