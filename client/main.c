// fusewire: the bundled client.
int main(void) { return 0; }
