/* The patterns of mp_bench.c. Step number k uses slot k of the buffers; slots are used again when their requests were waited
 * for. Host-synchronous steps wait on the host for the stream, and for each request. Stream-ordered ones let the stream wait,
 * and the host waits for a batch when it is FLIGHT batches ahead. */

enum { FLIGHT = 4 };

/* How a pattern is run. */
struct run {
    long steps, batch;
    int ordered;
    double kernel; /* microseconds, 0 without a kernel */
};

static struct {
    size_t size;
    long slots;
    char *in, *out, *ready; /* of each slot; of each batch in flight a word */
    mp_request_t *sends, *receives, *readies;
    mp_window_t window;
    mp_reg_t in_reg, out_reg, ready_reg;
} memory;

static char *in_of(long step) { return memory.in + (size_t)(step % memory.slots) * memory.size; }
static char *out_of(long step) { return memory.out + (size_t)(step % memory.slots) * memory.size; }
static mp_request_t *send_of(long step) { return &memory.sends[step % memory.slots]; }
static mp_request_t *receive_of(long step) { return &memory.receives[step % memory.slots]; }

static void must(int result)
{
    if (result != MP_SUCCESS)
        give_up("a call of LibMP failed");
}

static void wait_for(mp_request_t *request)
{
    if (*request != NULL)
        must(mp_wait(request));
}

static void wait_for_steps(long first, long count)
{
    for (long step = first; step < first + count; step++) {
        wait_for(send_of(step));
        wait_for(receive_of(step));
    }
}

/* The kernel of a step, if there is one. */
static void work(const struct run *run, char *to, const char *from)
{
    if (run->kernel == 0)
        return;
    launch(to, from, memory.size, run->kernel);
    if (!run->ordered)
        synchronize();
}

static void send(const struct run *run, long step)
{
    if (run->ordered) {
        must(mp_isend_on_stream(out_of(step), (int)memory.size, 1 - rank, &memory.out_reg, send_of(step), device.stream));
    } else {
        must(mp_isend(out_of(step), (int)memory.size, 1 - rank, &memory.out_reg, send_of(step)));
        wait_for(send_of(step));
    }
}

static void await(const struct run *run, mp_request_t *request)
{
    if (run->ordered)
        must(mp_wait_on_stream(request, device.stream));
    else
        wait_for(request);
}

/* Posts the receives of a batch before its first message may come. */
static void post_receives(long first, long count)
{
    for (long step = first; step < first + count; step++)
        must(mp_irecv(in_of(step), (int)memory.size, 1 - rank, &memory.in_reg, receive_of(step)));
}

/* What a step's kernel reads if it follows the step before. */
static const char *before(long step) { return step == 0 ? out_of(0) : in_of(step - 1); }

/* A message and its answer are two steps of the table, each with a kernel before the send. */
static void pingpong(const struct run *run, long step)
{
    if (rank == 0) {
        work(run, out_of(step), before(step));
        send(run, step);
        await(run, receive_of(step));
    } else {
        await(run, receive_of(step));
        work(run, out_of(step), in_of(step));
        send(run, step);
    }
}

static void sendrecv(const struct run *run, long step)
{
    work(run, out_of(step), before(step));
    if (run->ordered) {
        send(run, step);
    } else {
        must(mp_isend(out_of(step), (int)memory.size, 1 - rank, &memory.out_reg, send_of(step)));
    }
    await(run, receive_of(step));
    if (!run->ordered)
        wait_for(send_of(step));
}

/* The consumer says by a word for each batch that its receives are posted. */
static void ready(const struct run *run, long batch)
{
    char *word = memory.ready + 4 * (batch % FLIGHT);
    mp_request_t *request = &memory.readies[batch % FLIGHT];
    wait_for(request);
    if (rank == 1) {
        must(mp_isend(word, 4, 0, &memory.ready_reg, request));
    } else {
        must(mp_irecv(word, 4, 1, &memory.ready_reg, request));
        await(run, request);
    }
}

static void produce_consume(const struct run *run, long step)
{
    if (step % run->batch == 0)
        ready(run, step / run->batch);
    if (rank == 0) {
        work(run, out_of(step), out_of(step));
        send(run, step);
    } else {
        await(run, receive_of(step));
        work(run, out_of(step), in_of(step));
    }
}

static void put(const struct run *run, long step)
{
    const size_t at = (size_t)(step % memory.slots) * memory.size;
    if (rank == 1)
        return;
    work(run, out_of(step), out_of(step));
    if (run->ordered) {
        must(mp_iput_on_stream(out_of(step), (int)memory.size, &memory.out_reg, 1, at, &memory.window, send_of(step), 0,
                               device.stream));
    } else {
        must(mp_iput(out_of(step), (int)memory.size, &memory.out_reg, 1, at, &memory.window, send_of(step), 0));
        wait_for(send_of(step));
    }
}

/* The host starts a get. The stream waits for it. */
static void get(const struct run *run, long step)
{
    const size_t at = (size_t)(step % memory.slots) * memory.size;
    if (rank == 1)
        return;
    must(mp_iget(in_of(step), (int)memory.size, &memory.in_reg, 1, at, &memory.window, receive_of(step)));
    await(run, receive_of(step));
    work(run, out_of(step), in_of(step));
}

enum { RECEIVES_BOTH = 3, RECEIVES_ONE = 2 };

static const struct pattern {
    const char *name;
    void (*step)(const struct run *, long);
    int receives;       /* a bit for each rank that receives messages */
    int each;           /* how many steps of the table one call is */
    int puts, gets;
} patterns[] = {
    {"pingpong", pingpong, RECEIVES_BOTH, 2, 0, 0},   {"sendrecv", sendrecv, RECEIVES_BOTH, 1, 0, 0},
    {"produce-consume", produce_consume, RECEIVES_ONE, 1, 0, 0},
    {"put", put, 0, 1, 1, 0}, {"get", get, 0, 1, 0, 1},
};

/* Runs all steps, and returns when they are over in this process. */
static void run_steps(const struct pattern *pattern, const struct run *run)
{
    for (long first = 0; first < run->steps; first += run->batch) {
        if (first >= FLIGHT * run->batch)
            wait_for_steps(first - FLIGHT * run->batch, run->batch);
        if (pattern->receives >> rank & 1)
            post_receives(first, run->batch);
        for (long step = first; step < first + run->batch; step++)
            pattern->step(run, step);
    }
    synchronize();
    wait_for_steps(0, memory.slots);
    for (int i = 0; i < FLIGHT; i++)
        wait_for(&memory.readies[i]);
}
