-- Returns {remaining milliseconds of the lock KEYS[1], last token in KEYS[2] if that is given, fields and values of the lock, the text
-- about its holder in the key ARGV[1] or '', its mode as a read-write lock or ''}. For the mode 'read' the fields are the holds that live,
-- and the values the milliseconds that they have left. ARGV[2] is the prefix of their keys.
local text = redis.pcall('GET', ARGV[1])
if type(text) ~= 'string' then text = '' end
local left, token = call('PTTL', KEYS[1]), KEYS[2] and call('GET', KEYS[2]) or ''
local mode = call('HGET', KEYS[1], 'mode') or ''
if mode ~= 'read' then return {left, token, call('HGETALL', KEYS[1]), text, mode} end
local readers = readersOf(KEYS[1], ARGV[2], nil, all)
return readers.failed or {readers.longest, token, readers.living, text, mode}
