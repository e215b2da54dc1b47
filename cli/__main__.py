from packidx_cli.main import run

run()
