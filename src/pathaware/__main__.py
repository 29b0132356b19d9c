from pathaware.cli import main

main()
