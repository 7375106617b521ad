/* A child of bench/against.py: llama.cpp by way of node-llama-cpp.
 *
 *     node bench/contender_llama.mjs FOLDER-WITH-NODE_MODULES FILE.gguf THREADS
 *
 * The protocol is that of bench/contender.py. */
import {readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [, , home, file, threads] = process.argv;
const require = createRequire(pathToFileURL(home + "/"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: file, gpuLayers: 0});
const context = await model.createContext({contextSize: 1024, batchSize: 512,
                                           threads: Number(threads)});
const sequence = context.getSequence();

// What this process has had from the disk.
const readBytes = () => Number(/^read_bytes: (\d+)/m.exec(readFileSync("/proc/self/io"))[1]);

async function lap(tokens, block) {
    const read = readBytes(), cpu = process.cpuUsage(), begun = performance.now();
    await block();
    const {user, system} = process.cpuUsage(cpu);
    return {tokens, seconds: (performance.now() - begun) / 1e3, cpu_seconds: (user + system) / 1e6,
            read_bytes: readBytes() - read};
}

async function run({prompt, tokens}) {
    await sequence.clearHistory();
    const prefill = await lap(prompt.length,
                              () => sequence.evaluateWithoutGeneratingNewTokens(prompt));
    const decode = await lap(tokens, async () => {
        let count = 0;
        const options = {temperature: 0, yieldEogToken: true};
        for await (const token of sequence.evaluate([1], options))
            if (++count === tokens || token === undefined)
                break;
        if (count < tokens)
            throw new Error(`only ${count} tokens came`);
    });
    return {prefill, decode};
}

console.log(JSON.stringify({ready: true}));
for await (const line of createInterface({input: process.stdin}))
    console.log(JSON.stringify(await run(JSON.parse(line))));
await llama.dispose();
